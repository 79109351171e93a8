package dev.paceline.demo.settings

/** Where settings are kept: the app's preferences, or a map in tests. Null is no value. */
interface KeyValues {
    fun get(key: String): String?
    fun put(values: Map<String, String?>)
}

/** A stored value that this version does not allow, so that the default is taken. */
data class Refused(val field: Field, val text: String)

data class Stored(val settings: Settings, val refused: List<Refused>)

class SettingsStore(private val values: KeyValues) {
    fun load(): Stored {
        var settings = Settings()
        val refused = mutableListOf<Refused>()
        for (field in Field.entries) {
            val text = values.get(field.key) ?: continue
            val next = settings.with(field, text)
            if (next == null) refused += Refused(field, text) else settings = next
        }
        return Stored(settings, refused)
    }

    /** Defaults are not stored, so that those of a later version hold. */
    fun save(settings: Settings) = values.put(Field.entries.associate { it.key to settings.text(it).ifEmpty { null } })
}
