package dev.paceline.core

import java.util.concurrent.atomic.AtomicLong

/** What went wrong, in one sentence for people. */
class PacelineException(message: String) : Exception(message)

/** Where a model's graphs run; the GPU takes target and drafter or none. The codes are LiteRT's. */
enum class Backend(internal val code: Int) { CPU(1), GPU(2), NPU(4) }

/** What loading is doing; `fraction` goes from 0 to 1 in each stage. Called on the thread that loads. */
fun interface LoadProgress {
    fun report(stage: String, fraction: Double)
}

/**
 * @property library libLiteRt.so; null finds it where the system does.
 * @property cacheDir for packed weights and measured costs; null keeps none, which takes more memory and time.
 * @property threads 0 takes the fast cores, at most 4.
 * @property context KV rows, prompt and output together; 0 takes 4096 or the model's own limit.
 * @property npuLibraries the directory of LiteRT's dispatch library; for an NPU.
 * @property allowFallback run on the CPU what the NPU cannot; [ModelInfo.fallback] says why.
 * @property memoryBudget bytes that loading may take; 0 does not ask.
 */
data class LoadOptions(
    val library: String? = null,
    val cacheDir: String? = null,
    val threads: Int = 0,
    val context: Int = 0,
    val target: Backend = Backend.CPU,
    val drafter: Backend = Backend.CPU,
    val npuLibraries: String? = null,
    val allowFallback: Boolean = false,
    val memoryBudget: Long = 0,
)

/** How the target chooses tokens: temperature 0 is greedy, topK 0 and topP 1 are off. */
data class Sampling(val temperature: Float = 0f, val topK: Int = 0, val topP: Double = 1.0)

/**
 * @property sampling what the checkpoint asks for.
 * @property fallback why something runs on the CPU that should be on the NPU; empty where all is as it was asked for.
 */
data class ModelInfo(
    val context: Int,
    val threads: Int,
    val mostPositions: Int,
    val vocabulary: Int,
    val canChat: Boolean,
    val weightsBytes: Long,
    val kvBytes: Long,
    val recipe: String,
    val ranOn: String,
    val sampling: Sampling,
    val fallback: String = "",
)

/**
 * @property draftLength drafts a round: 0 is plain decoding, up to [MOST_DRAFTS], or [AUTO] for as many as pay.
 * @property maxNewTokens 0 is no limit but the context.
 * @property seed null is random.
 * @property stops texts in front of which the output ends.
 */
data class GenerateSettings(
    val draftLength: Int = AUTO,
    val maxNewTokens: Int = 0,
    val sampling: Sampling = Sampling(),
    val seed: Long? = null,
    val stops: List<String> = emptyList(),
) {
    companion object {
        const val AUTO = -1
        const val MOST_DRAFTS = 7
    }
}

data class Turn(val fromModel: Boolean, val text: String)

enum class Finish { GOES_ON, STOP, LENGTH, CANCELLED }

/**
 * One token and the text it completes, which is often empty.
 *
 * @property token -1 where a generation was cancelled before its first token.
 * @property thought whether it belongs to what the model thinks before it answers.
 */
data class Piece(val token: Int, val text: String, val fromDraft: Boolean, val thought: Boolean, val finish: Finish)

/**
 * Counts of one generation, and milliseconds; every rate is derived.
 *
 * @property keptTokens of the prompt, whose KV rows were there already.
 * @property draftedAt, acceptedAt drafts by position in the round.
 * @property drafting drafts of the next round, as it looks now; 0 while drafting does not pay.
 * @property prefillMs up to the first token; [draftMs] and [verifyMs] come after it.
 */
data class Stats(
    val promptTokens: Int,
    val keptTokens: Int,
    val emitted: Int,
    val rounds: Int,
    val drafted: Int,
    val accepted: Int,
    val trials: Int,
    val draftedAt: List<Int>,
    val acceptedAt: List<Int>,
    val drafting: Int,
    val prefillMs: Double,
    val draftMs: Double,
    val verifyMs: Double,
) {
    val decodeMs get() = draftMs + verifyMs
    val tokensPerSecond get() = if (decodeMs > 0) 1000 * (emitted - 1) / decodeMs else 0.0
    val acceptedPerRound get() = if (rounds > 0) accepted.toDouble() / rounds else 0.0
    val acceptance get() = if (drafted > 0) accepted.toDouble() / drafted else 0.0
}

/** A loaded bundle. Calls from several threads take turns; only [Generation.cancel] does not wait. */
class Model private constructor(handle: Long) : AutoCloseable {
    private val handle = AtomicLong(handle)
    internal val lock = Any()

    val info: ModelInfo = readInfo()

    /** Continues a text. A new generation ends the one before. */
    fun generate(text: String, settings: GenerateSettings): Generation = begin(arrayOf(text.toByteArray()), booleanArrayOf(), settings)

    /** Continues a conversation whose last turn is the user's; rows of turns that were there before are kept. */
    fun chat(turns: List<Turn>, settings: GenerateSettings): Generation =
        begin(turns.map { it.text.toByteArray() }.toTypedArray(), turns.map { it.fromModel }.toBooleanArray(), settings)

    @Volatile
    private var current: Generation? = null

    private fun begin(texts: Array<ByteArray>, fromModel: BooleanArray, settings: GenerateSettings): Generation {
        current?.cancel()
        synchronized(lock) {
            current?.close()
            val sampling = settings.sampling
            val begun = Native.generate(
                opened(), texts, fromModel, settings.draftLength, settings.maxNewTokens, sampling.temperature, sampling.topK,
                sampling.topP, 0.0, settings.seed != null, settings.seed ?: 0, settings.stops.map { it.toByteArray() }.toTypedArray(),
            )
            return Generation(this, begun).also { current = it }
        }
    }

    private fun opened(): Long = handle.get().also { if (it == 0L) throw PacelineException("the model is closed; load it again.") }

    private fun readInfo(): ModelInfo {
        val ints = IntArray(6)
        val longs = LongArray(2)
        val doubles = DoubleArray(2)
        val (recipe, ranOn, fallback) = Native.info(opened(), ints, longs, doubles)
        val sampling = Sampling(doubles[0].toFloat(), ints[5], doubles[1])
        return ModelInfo(
            ints[0], ints[1], ints[2], ints[3], ints[4] != 0, longs[0], longs[1], recipe.decodeToString(), ranOn.decodeToString(), sampling,
            fallback.decodeToString(),
        )
    }

    /** Frees everything; ends a generation that still runs. */
    override fun close() {
        current?.cancel()
        synchronized(lock) {
            current?.close()
            handle.getAndSet(0).let { if (it != 0L) Native.close(it) }
        }
    }

    companion object {
        /** Loads a bundle's directory. Throws [PacelineException]. */
        fun open(folder: String, options: LoadOptions, progress: LoadProgress): Model =
            open(folder.toByteArray(), emptyMap(), options, progress)

        /** Loads a bundle from open descriptors, name -> descriptor, which may be closed afterwards. Throws [PacelineException]. */
        fun open(files: Map<String, Int>, options: LoadOptions, progress: LoadProgress): Model = open(null, files, options, progress)

        private fun open(folder: ByteArray?, files: Map<String, Int>, options: LoadOptions, progress: LoadProgress): Model {
            val names = files.keys.map { it.toByteArray() }.toTypedArray()
            return Model(
                Native.open(
                    folder, names, files.values.toIntArray(), options.library?.toByteArray(), options.cacheDir?.toByteArray(),
                    options.threads, options.context, options.target.code, options.drafter.code, options.npuLibraries?.toByteArray(),
                    options.allowFallback, options.memoryBudget, progress,
                ),
            )
        }

        /** Why a backend cannot be used; null where it can be tried. */
        fun reasonAgainst(backend: Backend, library: String?, npuLibraries: String?): String? =
            Native.backendReason(library?.toByteArray(), npuLibraries?.toByteArray(), backend.code).decodeToString().ifEmpty { null }
    }
}

/** One text as it comes. */
class Generation internal constructor(private val model: Model, handle: Long) : AutoCloseable {
    private val handleLock = Any() // so that cancelling never meets a handle that is freed meanwhile
    private var handle = handle

    /** The next token, or null after the last one. Throws [PacelineException]. */
    fun next(): Piece? = synchronized(model.lock) {
        if (handle == 0L) return null
        val piece = IntArray(4)
        val text = Native.next(handle, piece) ?: return null
        Piece(piece[0], text.decodeToString(), piece[1] != 0, piece[2] != 0, Finish.entries[piece[3]])
    }

    val stats: Stats
        get() = synchronized(model.lock) {
            check(handle != 0L) { "the generation is closed" }
            val ints = IntArray(8 + 2 * GenerateSettings.MOST_DRAFTS)
            val times = DoubleArray(3)
            Native.stats(handle, ints, times)
            val drafted = ints.slice(7 until 14)
            Stats(
                ints[0], ints[1], ints[2], ints[3], ints[4], ints[5], ints[6], drafted, ints.slice(14 until 21), ints[21],
                times[0], times[1], times[2],
            )
        }

    /** Ends the text after its next token, or chunk of the prompt; does not wait. */
    fun cancel() = synchronized(handleLock) { if (handle != 0L) Native.cancel(handle) }

    override fun close() = synchronized(model.lock) {
        synchronized(handleLock) {
            if (handle != 0L) Native.end(handle)
            handle = 0
        }
    }
}
