package dev.paceline.demo.engine

import dev.paceline.core.Finish
import dev.paceline.core.ModelInfo
import dev.paceline.core.Piece
import dev.paceline.core.Stats

/** All that a screen shows of the engine. It changes only by the functions below, which are pure. */
data class EngineState(
    val model: ModelState = ModelState.None,
    val messages: List<Message> = emptyList(),
    val work: Work = Work.Idle,
    /** Of the newest answer. */
    val stats: Stats? = null,
    val comparison: Comparison? = null,
    val problem: Problem? = null,
)

sealed interface ModelState {
    val source: ModelSource?

    data object None : ModelState {
        override val source = null
    }

    /** @property again whether it was freed before, because memory was low. */
    data class Loading(override val source: ModelSource, val again: Boolean, val stage: String, val fraction: Double) : ModelState

    data class Ready(override val source: ModelSource, val info: ModelInfo) : ModelState

    /** Chosen, but not in memory: freed, or not loaded because of a problem. The next message loads it. */
    data class Absent(override val source: ModelSource, val freed: Boolean) : ModelState
}

sealed interface Work {
    data object Idle : Work

    data object Answering : Work

    data class Comparing(val done: Int, val of: Int) : Work
}

enum class Author { USER, MODEL }

/** How an answer ended. */
enum class Ending { COMPLETE, CONTEXT_FULL, STOPPED, FAILED }

/** @property ending null for what the user wrote, and while an answer is being written. */
data class Message(val id: Int, val author: Author, val text: String, val thoughts: String = "", val ending: Ending? = null)

val EngineState.isIdle get() = work == Work.Idle

/** With the user's message, and an empty answer that is to be written. */
fun EngineState.asked(text: String): EngineState {
    val id = (messages.lastOrNull()?.id ?: 0) + 1
    return copy(
        messages = messages + Message(id, Author.USER, text) + Message(id + 1, Author.MODEL, ""),
        work = Work.Answering,
        stats = null,
        problem = null,
    )
}

/** With one more piece of an answer, unless the conversation is another meanwhile. */
fun EngineState.wrote(answer: Int, piece: Piece, stats: Stats): EngineState {
    if (messages.none { it.id == answer }) return this
    val next = withMessage(answer) {
        val written = if (piece.thought) it.copy(thoughts = it.thoughts + piece.text) else it.copy(text = it.text + piece.text)
        written.copy(ending = endingOf(piece.finish))
    }
    return next.copy(stats = stats)
}

/** Idle again; an answer that has no ending yet gets this one. */
fun EngineState.ended(answer: Int?, ending: Ending, problem: Problem?): EngineState {
    val next = if (answer == null) this else withMessage(answer) { if (it.ending == null) it.copy(ending = ending) else it }
    return next.copy(work = Work.Idle, problem = problem ?: next.problem)
}

fun EngineState.newChat() = copy(messages = emptyList(), stats = null, comparison = null, problem = null)

private fun endingOf(finish: Finish) = when (finish) {
    Finish.GOES_ON -> null
    Finish.STOP -> Ending.COMPLETE
    Finish.LENGTH -> Ending.CONTEXT_FULL
    Finish.CANCELLED -> Ending.STOPPED
}

private fun EngineState.withMessage(id: Int, change: (Message) -> Message) =
    copy(messages = messages.map { if (it.id == id) change(it) else it })
