package dev.paceline.demo.bundles

/** JSON as maps, lists, strings, doubles, booleans and null. A desktop JVM has no org.json, and the manifest needs no more. */
class JsonException(message: String) : Exception(message)

fun parseJson(text: String): Any? = JsonReader(text).document()

/** A manifest has three levels; the limit keeps a hostile one from exhausting the stack. */
private const val DEEPEST = 32

private class JsonReader(private val text: String) {
    private var at = 0

    fun document(): Any? = value(0).also {
        space()
        if (at != text.length) fail("the end")
    }

    private fun value(depth: Int): Any? {
        if (depth > DEEPEST) fail("at most $DEEPEST levels")
        space()
        return when (peek()) {
            '{' -> inObject(depth)
            '[' -> inArray(depth)
            '"' -> string()
            't' -> word("true", true)
            'f' -> word("false", false)
            'n' -> word("null", null)
            else -> number()
        }
    }

    private fun inObject(depth: Int): Map<String, Any?> {
        val made = LinkedHashMap<String, Any?>()
        items('}') {
            val key = string()
            space()
            take(':')
            if (key in made) fail("each name once")
            made[key] = value(depth + 1)
        }
        return made
    }

    private fun inArray(depth: Int): List<Any?> {
        val made = ArrayList<Any?>()
        items(']') { made += value(depth + 1) }
        return made
    }

    private fun items(end: Char, item: () -> Unit) {
        at++
        space()
        if (peek() == end) {
            at++
            return
        }
        while (true) {
            space()
            item()
            space()
            if (peek() == end) break
            take(',')
        }
        at++
    }

    private fun string(): String {
        take('"')
        val made = StringBuilder()
        while (true) {
            val next = peek()
            at++
            when {
                next == '"' -> return made.toString()
                next == '\\' -> made.append(escaped())
                next < ' ' -> fail("no control character")
                else -> made.append(next)
            }
        }
    }

    private fun escaped(): Char {
        val kind = peek()
        at++
        return when (kind) {
            '"', '\\', '/' -> kind
            'b' -> '\b'
            'f' -> '\u000c'
            'n' -> '\n'
            'r' -> '\r'
            't' -> '\t'
            'u' -> {
                val digits = text.substring(at, minOf(at + 4, text.length))
                at += digits.length
                if (digits.length == 4 && digits.all { it.isHexDigit() }) digits.toInt(16).toChar() else fail("four hex digits")
            }
            else -> fail("an escape")
        }
    }

    private fun number(): Double {
        val found = NUMBER.matchAt(text, at)?.value ?: fail("a value")
        at += found.length
        return found.toDouble()
    }

    private fun word(word: String, value: Any?): Any? {
        if (!text.startsWith(word, at)) fail(word)
        at += word.length
        return value
    }

    private fun space() {
        while (at < text.length && text[at] in " \t\r\n") at++
    }

    private fun peek(): Char = if (at < text.length) text[at] else fail("more text")

    private fun take(wanted: Char) {
        if (peek() != wanted) fail("'$wanted'")
        at++
    }

    private fun fail(wanted: String): Nothing = throw JsonException("not JSON: $wanted expected at character $at")

    private companion object {
        val NUMBER = Regex("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")
    }
}

private fun Char.isHexDigit() = this in '0'..'9' || this in 'a'..'f' || this in 'A'..'F'
