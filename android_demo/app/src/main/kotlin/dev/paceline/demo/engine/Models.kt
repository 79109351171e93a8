package dev.paceline.demo.engine

import dev.paceline.core.GenerateSettings
import dev.paceline.core.LoadProgress
import dev.paceline.core.ModelInfo
import dev.paceline.core.Piece
import dev.paceline.core.Stats
import dev.paceline.core.Turn
import dev.paceline.demo.settings.LoadSettings

/** What the engine asks of a model; [CoreModel] is the core's. */
interface LoadedModel : AutoCloseable {
    val info: ModelInfo
    fun chat(turns: List<Turn>, settings: GenerateSettings): TextStream
    fun generate(text: String, settings: GenerateSettings): TextStream
}

/** One text as it comes. */
interface TextStream : AutoCloseable {
    /** The next token, or null after the last one. */
    fun next(): Piece?
    val stats: Stats

    /** From any thread; does not wait. */
    fun cancel()
}

/** Where a bundle lies. */
sealed interface ModelSource {
    val name: String

    data class Folder(override val name: String, val path: String) : ModelSource

    /** A directory that the system's file picker gave, whose files are opened as descriptors. */
    data class Tree(override val name: String, val uri: String) : ModelSource
}

/** Loads a model. Throws [dev.paceline.core.PacelineException] or [ProblemException]. */
fun interface ModelOpener {
    fun open(source: ModelSource, settings: LoadSettings, progress: LoadProgress): LoadedModel
}

/** What can go wrong beside the core, which has sentences of its own; the user interface has the words for it. */
sealed interface Problem {
    data class Core(val sentence: String) : Problem

    data object NoModel : Problem

    /** A directory of the file picker cannot be read any more. */
    data class TreeGone(val name: String) : Problem

    /** libpaceline.so cannot be loaded. */
    data class NoLibrary(val detail: String) : Problem
}

class ProblemException(val problem: Problem) : Exception(problem.toString())
