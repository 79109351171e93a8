package dev.paceline.demo.engine

import dev.paceline.core.GenerateSettings
import dev.paceline.core.LoadProgress
import dev.paceline.core.PacelineException
import dev.paceline.demo.settings.LoadSettings
import dev.paceline.demo.settings.Settings
import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

/**
 * The one model of the process, and the conversation with it. Screens come and go; they observe [state] and give orders, which
 * return at once. Orders are carried out one after another on `worker`, a single thread.
 */
class Engine(
    private val opener: ModelOpener,
    private val settings: () -> Settings,
    private val keepDraftLength: (Int) -> Unit,
    worker: CoroutineContext,
) {
    private class Held(val source: ModelSource, val settings: LoadSettings, val model: LoadedModel)

    private val scope = CoroutineScope(SupervisorJob() + worker)
    private val mutable = MutableStateFlow(EngineState())
    private var held: Held? = null // the worker's
    private var running = StopSignal() // the lock's

    val state: StateFlow<EngineState> = mutable.asStateFlow()

    /** Loads a model; what runs is stopped. */
    fun select(source: ModelSource) {
        stop()
        mutable.update { it.copy(model = ModelState.Loading(source, false, "", 0.0), problem = null) }
        scope.launch {
            val problem = attempt { }
            if (problem != null) mutable.update { it.copy(problem = problem) }
        }
    }

    /** Writes an answer; false while another order is carried out. */
    fun send(text: String): Boolean {
        val signal = begin { it.asked(text) } ?: return false
        val answer = state.value.messages.last().id
        scope.launch {
            val problem = attempt { answer(it, answer, signal) }
            mutable.update { it.ended(answer, if (problem == null) Ending.STOPPED else Ending.FAILED, problem) }
        }
        return true
    }

    /** Compares plain with drafted decoding on the newest message or, where there is none, on `otherwise`. */
    fun compare(otherwise: String): Boolean {
        val signal = begin { it.copy(work = Work.Comparing(0, COMPARED_TURNS), comparison = null, problem = null) } ?: return false
        val prompt = Prompt.of(state.value.messages) ?: Prompt.of(otherwise)
        scope.launch {
            val problem = attempt { compare(it, prompt, signal) }
            mutable.update { it.ended(null, Ending.STOPPED, problem) }
        }
        return true
    }

    @Synchronized
    fun stop() = running.stop()

    fun newChat() {
        stop()
        mutable.update { it.newChat() }
    }

    /** Frees the model as soon as nothing runs; the next order loads it again. */
    fun free() {
        scope.launch {
            val source = held?.source ?: return@launch
            close()
            mutable.update { if (it.model is ModelState.Ready) it.copy(model = ModelState.Absent(source, freed = true)) else it }
        }
    }

    fun dismissProblem() = mutable.update { it.copy(problem = null) }

    fun dismissComparison() = mutable.update { it.copy(comparison = null) }

    @Synchronized
    private fun begin(change: (EngineState) -> EngineState): StopSignal? {
        if (!state.value.isIdle) return null
        mutable.update(change)
        return StopSignal().also { running = it }
    }

    /** Carries out an order with the model; null, or what went wrong. */
    private fun attempt(order: (LoadedModel) -> Unit): Problem? =
        try {
            order(loaded())
            null
        } catch (error: PacelineException) {
            Problem.Core(error.message.orEmpty())
        } catch (error: ProblemException) {
            error.problem
        }

    /** The chosen model, loaded as the settings are now. */
    private fun loaded(): LoadedModel {
        val source = state.value.model.source ?: throw ProblemException(Problem.NoModel)
        val wanted = settings().load
        val there = held?.takeIf { it.source == source && it.settings == wanted }?.model
        if (there != null) {
            show(ModelState.Ready(source, there.info))
            return there
        }
        close()
        val again = (state.value.model as? ModelState.Absent)?.freed == true
        val progress = LoadProgress { stage, fraction -> show(ModelState.Loading(source, again, stage, fraction)) }
        progress.report("", 0.0)
        var model: LoadedModel? = null
        try {
            model = opener.open(source, wanted, progress).also { held = Held(source, wanted, it) }
            return model
        } finally {
            show(model?.let { ModelState.Ready(source, it.info) } ?: ModelState.Absent(source, freed = false))
        }
    }

    /** Shows how it stands with a model, unless another one is chosen meanwhile. */
    private fun show(model: ModelState) = mutable.update { if (it.model.source == model.source) it.copy(model = model) else it }

    private fun close() {
        held?.model?.close()
        held = null
    }

    private fun answer(model: LoadedModel, answer: Int, signal: StopSignal) {
        val prompt = Prompt.of(state.value.messages)
        if (signal.isStopped || prompt == null) return // stopped while the model was loaded, or a new chat was begun
        val chosen = settings()
        val generate = GenerateSettings(draftLength = chosen.draftLength, sampling = chosen.sampling(model.info.sampling))
        signal.read(prompt.begin(model, generate)) { text ->
            val piece = text.next()
            if (piece != null) mutable.update { it.wrote(answer, piece, text.stats) }
            piece != null
        }
    }

    private fun compare(model: LoadedModel, prompt: Prompt, signal: StopSignal) {
        val chosen = settings()
        val draftLength = if (chosen.draftLength == 0) GenerateSettings.AUTO else chosen.draftLength
        val sampling = chosen.sampling(model.info.sampling)
        val trials = compareInTurns(model, prompt, draftLength, sampling, signal) { done ->
            mutable.update { it.copy(work = Work.Comparing(done, COMPARED_TURNS)) }
        } ?: return // stopped
        val comparison = decide(draftLength, trials)
        comparison.better?.let(keepDraftLength)
        mutable.update { it.copy(comparison = comparison) }
    }
}
