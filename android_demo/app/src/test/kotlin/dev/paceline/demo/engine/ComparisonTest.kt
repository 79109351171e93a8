package dev.paceline.demo.engine

import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNull

class ComparisonTest {
    private val tokens = (1..32).toList()

    private fun decided(vararg pairs: Pair<Double, Double>, tokens: List<Int> = this.tokens) =
        decide(3, pairs.flatMap { (plain, drafted) -> listOf(Trial(false, plain, 0.0, tokens), Trial(true, drafted, 2.0, tokens)) })

    @Test
    fun `clearly faster drafts are kept`() {
        val comparison = decided(10.0 to 13.0, 10.0 to 14.0, 10.0 to 13.5)
        assertEquals(Verdict.DRAFTED, comparison.verdict)
        assertEquals(3, comparison.better)
        assertEquals(1.35, comparison.ratio, 1e-9)
        assertEquals(2.0, comparison.acceptedPerRound)
    }

    @Test
    fun `clearly slower drafts are turned off`() = assertEquals(0, decided(10.0 to 7.0, 10.0 to 6.5, 10.0 to 7.0).better)

    @Test
    fun `a difference within the noise changes nothing`() {
        val comparison = decided(10.0 to 9.0, 10.0 to 13.0, 10.0 to 11.0)
        assertEquals(Verdict.NO_DIFFERENCE, comparison.verdict)
        assertNull(comparison.better)
    }

    @Test
    fun `a difference too small to matter changes nothing`() =
        assertEquals(Verdict.NO_DIFFERENCE, decided(10.0 to 10.2, 10.0 to 10.2, 10.0 to 10.2).verdict)

    @Test
    fun `a phone that slows down does so for both`() =
        assertEquals(Verdict.DRAFTED, decided(20.0 to 26.0, 10.0 to 13.0, 5.0 to 6.5).verdict)

    @Test
    fun `a short text says nothing`() {
        assertEquals(Verdict.TOO_SHORT, decided(10.0 to 20.0, tokens = tokens.take(FEWEST_TOKENS - 1)).verdict)
        assertEquals(Verdict.DRAFTED, decided(10.0 to 20.0, tokens = tokens.take(FEWEST_TOKENS)).verdict)
    }

    @Test
    fun `texts that differ come first`() {
        val trials = listOf(Trial(false, 1.0, 0.0, listOf(1)), Trial(true, 9.0, 1.0, listOf(2)))
        assertEquals(Verdict.OTHER_TOKENS, decide(3, trials).verdict)
    }

    @Test
    fun `trials come in pairs`() {
        assertFailsWith<IllegalArgumentException> { decide(3, listOf(Trial(false, 1.0, 0.0, tokens))) }
    }
}
