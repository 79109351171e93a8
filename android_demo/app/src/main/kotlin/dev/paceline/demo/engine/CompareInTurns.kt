package dev.paceline.demo.engine

import dev.paceline.core.GenerateSettings
import dev.paceline.core.Sampling

private const val PAIRS = 3
private const val TOKENS = 32 // of a turn: some seconds on a phone

/** Two turns to warm up, which also let auto measure its calls, and then the pairs. */
const val COMPARED_TURNS = 2 + 2 * PAIRS

/**
 * The same prompt plain and drafted in turns, each pair in the other order than the one before. Null where it was stopped.
 *
 * All turns have one seed, so all of them write the same tokens if nothing is wrong, also where the target samples.
 */
fun compareInTurns(
    model: LoadedModel,
    prompt: Prompt,
    draftLength: Int,
    sampling: Sampling,
    signal: StopSignal,
    progress: (Int) -> Unit,
): List<Trial>? {
    val trials = (0 until COMPARED_TURNS).map { turn ->
        val drafted = turn % 4 == 1 || turn % 4 == 2
        val settings = GenerateSettings(if (drafted) draftLength else 0, TOKENS, sampling, seed = 1)
        val trial = trial(model, prompt, drafted, settings, signal) ?: return null
        progress(turn + 1)
        trial
    }
    return trials.drop(2)
}

private fun trial(model: LoadedModel, prompt: Prompt, drafted: Boolean, settings: GenerateSettings, signal: StopSignal): Trial? {
    if (signal.isStopped) return null
    val tokens = mutableListOf<Int>()
    var trial: Trial? = null
    signal.read(prompt.begin(model, settings)) { text ->
        val piece = text.next()
        if (piece != null) tokens += piece.token
        else trial = text.stats.let { Trial(drafted, it.tokensPerSecond, it.acceptedPerRound, tokens) }
        piece != null
    }
    return trial.takeUnless { signal.isStopped }
}
