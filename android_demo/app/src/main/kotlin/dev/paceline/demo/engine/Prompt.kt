package dev.paceline.demo.engine

import dev.paceline.core.GenerateSettings
import dev.paceline.core.Turn

/** What a model is to continue: a conversation, or a text where the bundle does not say how turns are written. */
class Prompt private constructor(private val turns: List<Turn>, private val text: String) {
    fun begin(model: LoadedModel, settings: GenerateSettings): TextStream =
        if (model.info.canChat) model.chat(turns, settings) else model.generate(text, settings)

    companion object {
        fun of(text: String) = Prompt(listOf(Turn(fromModel = false, text)), text)

        /** All messages up to the newest one of the user, or null where there is none. */
        fun of(messages: List<Message>): Prompt? {
            val asked = messages.take(messages.indexOfLast { it.author == Author.USER } + 1)
            if (asked.isEmpty()) return null
            return Prompt(turns(asked), asked.joinToString("") { it.text })
        }

        /** Without questions that have no answer, such as one that was stopped at once: turns alternate. */
        private fun turns(asked: List<Message>): List<Turn> {
            val turns = mutableListOf<Turn>()
            for (message in asked) {
                if (message.author == Author.MODEL && message.text.isEmpty()) {
                    turns.removeAt(turns.lastIndex) // removeLast() would be Java 21's, which Android has from API 35 only
                } else {
                    turns += Turn(message.author == Author.MODEL, message.text)
                }
            }
            return turns
        }
    }
}
