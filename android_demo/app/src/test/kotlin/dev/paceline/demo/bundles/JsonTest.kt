package dev.paceline.demo.bundles

import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith

class JsonTest {
    @Test
    fun values() {
        val text = """ {"a": [1, -2.5e3, true, false, null], "b\n\u00e9\"": {"": ""}, "c": []} """
        val expected = mapOf("a" to listOf(1.0, -2500.0, true, false, null), "b\né\"" to mapOf("" to ""), "c" to emptyList<Any>())
        assertEquals(expected, parseJson(text))
    }

    @Test
    fun `what is not JSON is refused`() {
        val bad = listOf(
            "", " ", "{", "[1,]", "{\"a\" 1}", "{\"a\":1,}", "[1 2]", "01", "1.", "+1", "NaN", "tru", "\"", "\"\\x\"",
            "\"\\u12g4\"", "\"\n\"", "1 2", "{\"a\":1,\"a\":2}", "'a'", "[".repeat(100_000),
        )
        for (text in bad) assertFailsWith<JsonException>(text.take(20)) { parseJson(text) }
    }
}
