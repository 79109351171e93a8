package dev.paceline.demo

import android.content.SharedPreferences
import dev.paceline.demo.settings.KeyValues

/** The app's preferences as the settings see them. */
class Preferences(private val preferences: SharedPreferences) : KeyValues {
    // A value of another type is none: all of ours are texts.
    override fun get(key: String): String? = preferences.all[key] as? String

    override fun put(values: Map<String, String?>) {
        val editor = preferences.edit()
        for ((key, value) in values) if (value == null) editor.remove(key) else editor.putString(key, value)
        editor.apply()
    }
}
