package dev.paceline.demo.settings

import dev.paceline.core.Backend
import dev.paceline.core.GenerateSettings
import dev.paceline.core.Sampling

/**
 * What the user chose; every value is allowed.
 *
 * @property temperature, topK, topP null is what the checkpoint asks for.
 */
data class Settings(
    val load: LoadSettings = LoadSettings(),
    val draftLength: Int = GenerateSettings.AUTO,
    val temperature: Float? = null,
    val topK: Int? = null,
    val topP: Double? = null,
) {
    fun sampling(asked: Sampling) = Sampling(temperature ?: asked.temperature, topK ?: asked.topK, topP ?: asked.topP)
}

/** Settings that take a new load. @property threads, context 0 leaves it to the core. */
data class LoadSettings(val threads: Int = 0, val context: Int = 0, val backend: Backend = Backend.CPU)

/** A setting as text, which is how it is stored and typed; an empty text is the default. */
enum class Field(val key: String) {
    THREADS("threads"),
    CONTEXT("context"),
    BACKEND("backend"),
    DRAFT("draft"),
    TEMPERATURE("temperature"),
    TOP_K("top_k"),
    TOP_P("top_p"),
}

const val AUTO_TEXT = "auto"
const val OFF_TEXT = "off"

val THREADS = 1..16
val CONTEXT = 128..131_072
val DRAFTS = 1..GenerateSettings.MOST_DRAFTS
val TEMPERATURE = 0f..2f
val TOP_K = 0..1000

fun Settings.text(field: Field): String = when (field) {
    Field.THREADS -> if (load.threads == 0) "" else load.threads.toString()
    Field.CONTEXT -> if (load.context == 0) "" else load.context.toString()
    Field.BACKEND -> if (load.backend == Backend.CPU) "" else load.backend.name.lowercase()
    Field.DRAFT -> when (draftLength) {
        GenerateSettings.AUTO -> ""
        0 -> OFF_TEXT
        else -> draftLength.toString()
    }
    Field.TEMPERATURE -> temperature?.toString().orEmpty()
    Field.TOP_K -> topK?.toString().orEmpty()
    Field.TOP_P -> topP?.toString().orEmpty()
}

/** With one setting from its text; null where the text is no value of it. */
fun Settings.with(field: Field, text: String): Settings? {
    val typed = text.trim()
    if (typed.isEmpty()) return withDefault(field)
    return when (field) {
        Field.THREADS -> whole(typed, THREADS)?.let { copy(load = load.copy(threads = it)) }
        Field.CONTEXT -> whole(typed, CONTEXT)?.let { copy(load = load.copy(context = it)) }
        Field.BACKEND -> Backend.entries.find { it.name.lowercase() == typed }?.let { copy(load = load.copy(backend = it)) }
        Field.DRAFT -> draft(typed)?.let { copy(draftLength = it) }
        Field.TEMPERATURE -> typed.toFloatOrNull()?.takeIf { it in TEMPERATURE }?.let { copy(temperature = it) }
        Field.TOP_K -> whole(typed, TOP_K)?.let { copy(topK = it) }
        Field.TOP_P -> typed.toDoubleOrNull()?.takeIf { it > 0 && it <= 1 }?.let { copy(topP = it) }
    }
}

private fun Settings.withDefault(field: Field): Settings = when (field) {
    Field.THREADS -> copy(load = load.copy(threads = 0))
    Field.CONTEXT -> copy(load = load.copy(context = 0))
    Field.BACKEND -> copy(load = load.copy(backend = Backend.CPU))
    Field.DRAFT -> copy(draftLength = GenerateSettings.AUTO)
    Field.TEMPERATURE -> copy(temperature = null)
    Field.TOP_K -> copy(topK = null)
    Field.TOP_P -> copy(topP = null)
}

private fun whole(text: String, allowed: IntRange) = text.toIntOrNull()?.takeIf { it in allowed }

private fun draft(text: String) = when (text) {
    AUTO_TEXT -> GenerateSettings.AUTO
    OFF_TEXT -> 0
    else -> whole(text, DRAFTS)
}
