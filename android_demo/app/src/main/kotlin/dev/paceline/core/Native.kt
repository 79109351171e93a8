package dev.paceline.core

/**
 * The core's C interface (core/include/paceline.h) as the JVM sees it; implemented in app/src/main/cpp/jni.cc.
 *
 * Text is UTF-8 in byte arrays, because JNI's own strings are not. Handles are addresses; 0 is none. Every function throws
 * [PacelineException] with the core's sentence.
 */
internal object Native {
    /** `folder` is a bundle's directory, or null where `names` and `fds` give its files as descriptors, which stay open. */
    external fun open(
        folder: ByteArray?,
        names: Array<ByteArray>,
        fds: IntArray,
        library: ByteArray?,
        cacheDir: ByteArray?,
        threads: Int,
        context: Int,
        targetOn: Int,
        drafterOn: Int,
        npuLibraries: ByteArray?,
        allowFallback: Boolean,
        memoryBudget: Long,
        progress: LoadProgress,
    ): Long

    external fun close(model: Long)

    /**
     * Fills `ints` with context, threads, most positions, vocabulary, can-chat and top-k, `longs` with the bytes of weights and
     * KV cache, `doubles` with temperature and top-p; returns recipe, what ran, and the
     * reason of a fallback.
     */
    external fun info(model: Long, ints: IntArray, longs: LongArray, doubles: DoubleArray): Array<ByteArray>

    /** Why a backend cannot be used; empty where it can be tried. */
    external fun backendReason(library: ByteArray?, npuLibraries: ByteArray?, backend: Int): ByteArray

    /** Begins a generation: of one text, or, where `fromModel` has an entry for each, of a conversation's turns. */
    external fun generate(
        model: Long,
        texts: Array<ByteArray>,
        fromModel: BooleanArray,
        draftLength: Int,
        maxNewTokens: Int,
        temperature: Float,
        topK: Int,
        topP: Double,
        minP: Double,
        hasSeed: Boolean,
        seed: Long,
        stops: Array<ByteArray>,
    ): Long

    /** The next piece's text, or null after the last; fills `piece` with token, from-draft, thought and finish. */
    external fun next(generation: Long, piece: IntArray): ByteArray?

    external fun cancel(generation: Long)

    /** Fills `ints` with the counts of paceline_stats in its order, and `times` with prefill, draft and verify in ms. */
    external fun stats(generation: Long, ints: IntArray, times: DoubleArray)

    external fun end(generation: Long)
}
