package dev.paceline.demo.engine

import dev.paceline.core.Finish
import dev.paceline.core.GenerateSettings
import dev.paceline.core.ModelInfo
import dev.paceline.core.Piece
import dev.paceline.core.Sampling
import dev.paceline.core.Stats
import dev.paceline.core.Turn
import java.util.concurrent.atomic.AtomicInteger

/** A model that writes what a test says, and keeps what it was asked. `wait` runs before each token. */
class ScriptedModel(
    private val canChat: Boolean = true,
    private val words: List<String> = listOf("Good", " day", "."),
    private val thoughts: Int = 0,
    private val speed: (draftLength: Int) -> Double = { 10.0 },
    private val token: (position: Int, draftLength: Int) -> Int = { position, _ -> position },
    private val wait: (position: Int) -> Unit = {},
) : LoadedModel {
    val chats = mutableListOf<List<Turn>>()
    val texts = mutableListOf<String>()
    val asked = mutableListOf<GenerateSettings>()
    val closedStreams = AtomicInteger()

    @Volatile
    var isClosed = false

    override val info = ModelInfo(512, 2, 512, 100, canChat, 0, 0, "f32", "script", Sampling(0.5f, 3, 0.9))

    override fun chat(turns: List<Turn>, settings: GenerateSettings): TextStream = begin(settings).also { chats += turns }

    override fun generate(text: String, settings: GenerateSettings): TextStream = begin(settings).also { texts += text }

    override fun close() {
        isClosed = true
    }

    private fun begin(settings: GenerateSettings): TextStream {
        check(!isClosed) { "closed" }
        asked += settings
        return Script(settings)
    }

    private inner class Script(private val settings: GenerateSettings) : TextStream {
        private var position = 0

        @Volatile
        private var isCancelled = false
        private var isOver = false

        override fun next(): Piece? {
            if (isOver || position == words.size) return null
            wait(position)
            isOver = isCancelled
            val last = position + 1 == words.size || position + 1 == settings.maxNewTokens
            val finish = if (isCancelled) Finish.CANCELLED else if (last) Finish.STOP else Finish.GOES_ON
            isOver = isOver || last
            val made = Piece(token(position, settings.draftLength), words[position], false, position < thoughts, finish)
            position++
            return made
        }

        override val stats: Stats
            get() {
                val decodeMs = 1000 * (position - 1) / speed(settings.draftLength)
                return Stats(1, 0, position, position, 0, 0, 0, emptyList(), emptyList(), 0, 1.0, 0.0, decodeMs)
            }

        override fun cancel() {
            isCancelled = true
        }

        override fun close() {
            closedStreams.incrementAndGet()
        }
    }
}

/** Waits until something holds, at most some seconds. */
fun await(what: String, holds: () -> Boolean) {
    val end = System.nanoTime() + 10_000_000_000
    while (!holds()) {
        check(System.nanoTime() < end) { "$what did not come" }
        Thread.sleep(2)
    }
}
