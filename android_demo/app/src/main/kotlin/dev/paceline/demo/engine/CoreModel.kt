package dev.paceline.demo.engine

import dev.paceline.core.GenerateSettings
import dev.paceline.core.Generation
import dev.paceline.core.Model
import dev.paceline.core.Turn

/** A model of the core. */
class CoreModel(private val model: Model) : LoadedModel {
    override val info get() = model.info

    override fun chat(turns: List<Turn>, settings: GenerateSettings): TextStream = CoreText(model.chat(turns, settings))

    override fun generate(text: String, settings: GenerateSettings): TextStream = CoreText(model.generate(text, settings))

    override fun close() = model.close()
}

private class CoreText(private val generation: Generation) : TextStream {
    override fun next() = generation.next()

    override val stats get() = generation.stats

    override fun cancel() = generation.cancel()

    override fun close() = generation.close()
}

/**
 * Loads libpaceline.so, which [dev.paceline.core.Native] needs: Android finds it in the app, a desktop at `path`. Throws
 * [ProblemException].
 */
fun loadCore(path: String? = null) {
    try {
        if (path == null) System.loadLibrary("paceline") else System.load(path)
    } catch (error: UnsatisfiedLinkError) {
        throw ProblemException(Problem.NoLibrary(error.message ?: error.toString()))
    }
}
