package dev.paceline.demo.ui

/**
 * What of a growing text a screen reader is to say next: whole sentences, each once. A live region that showed the text itself would
 * be read from its beginning at every token.
 */
class SpokenText {
    private var text = ""
    private var spoken = 0

    /** The sentences that are new; all that is left where the text is finished; null where there is nothing to say. */
    fun next(now: String, finished: Boolean): String? {
        if (!now.startsWith(text)) spoken = 0 // another text
        text = now
        val end = if (finished) now.length else now.indexOfLast { it in ENDS } + 1
        if (end <= spoken) return null
        return now.substring(spoken, end).trim().ifEmpty { null }.also { spoken = end }
    }

    private companion object {
        const val ENDS = ".!?\n。！？…"
    }
}
