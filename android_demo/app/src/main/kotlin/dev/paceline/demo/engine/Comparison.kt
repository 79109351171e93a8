package dev.paceline.demo.engine

/** One turn of a comparison. */
data class Trial(val drafted: Boolean, val tokensPerSecond: Double, val acceptedPerRound: Double, val tokens: List<Int>)

enum class Verdict { PLAIN, DRAFTED, NO_DIFFERENCE, OTHER_TOKENS, TOO_SHORT }

/**
 * @property plain, drafted tokens per second, medians.
 * @property ratio drafted over plain; the median of the pairs.
 * @property noise what the pairs' ratios differ among themselves, one to each side.
 */
data class Comparison(
    val draftLength: Int,
    val plain: Double,
    val drafted: Double,
    val acceptedPerRound: Double,
    val ratio: Double,
    val noise: Double,
    val sameTokens: Boolean,
    val verdict: Verdict,
) {
    /** The draft length that is to be kept; null keeps the present one. */
    val better get() = when (verdict) {
        Verdict.PLAIN -> 0
        Verdict.DRAFTED -> draftLength
        else -> null
    }
}

/** Fewer tokens say nothing of a speed; a guess. */
const val FEWEST_TOKENS = 8

/** A smaller difference is not worth a change, and phones' clocks move by as much; a guess. */
const val LEAST_MARGIN = 0.03

/**
 * Whether drafting pays. Each plain trial is compared with the drafted one beside it, so that a phone that warms up or slows
 * down does so for both. A difference counts where it is greater than what the pairs differ among themselves.
 */
fun decide(draftLength: Int, trials: List<Trial>): Comparison {
    val (drafted, plain) = trials.partition { it.drafted }
    require(plain.size == drafted.size && plain.isNotEmpty()) { "trials must come in pairs" }
    val ratios = plain.zip(drafted) { a, b -> if (a.tokensPerSecond > 0) b.tokensPerSecond / a.tokensPerSecond else 1.0 }
    val ratio = median(ratios)
    val noise = (ratios.max() - ratios.min()) / 2
    val margin = maxOf(LEAST_MARGIN, noise)
    val sameTokens = trials.map { it.tokens }.distinct().size == 1
    val verdict = when {
        !sameTokens -> Verdict.OTHER_TOKENS
        trials.any { it.tokens.size < FEWEST_TOKENS } -> Verdict.TOO_SHORT
        ratio > 1 + margin -> Verdict.DRAFTED
        ratio < 1 - margin -> Verdict.PLAIN
        else -> Verdict.NO_DIFFERENCE
    }
    return Comparison(
        draftLength,
        median(plain.map { it.tokensPerSecond }),
        median(drafted.map { it.tokensPerSecond }),
        median(drafted.map { it.acceptedPerRound }),
        ratio,
        noise,
        sameTokens,
        verdict,
    )
}

private fun median(values: List<Double>): Double {
    val sorted = values.sorted()
    return (sorted[(sorted.size - 1) / 2] + sorted[sorted.size / 2]) / 2
}
