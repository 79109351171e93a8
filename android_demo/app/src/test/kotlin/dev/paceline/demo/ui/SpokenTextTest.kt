package dev.paceline.demo.ui

import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNull

class SpokenTextTest {
    @Test
    fun `each sentence is said once, and the rest at the end`() {
        val spoken = SpokenText()
        assertNull(spoken.next("Good", false))
        assertEquals("Good day.", spoken.next("Good day. How", false))
        assertNull(spoken.next("Good day. How are", false))
        assertEquals("How are you? Well", spoken.next("Good day. How are you? Well", true))
        assertNull(spoken.next("Good day. How are you? Well", true))
    }

    @Test
    fun `another text begins anew`() {
        val spoken = SpokenText()
        spoken.next("One.", true)
        assertNull(spoken.next("", false))
        assertEquals("二。", spoken.next("二。三", false))
    }
}
