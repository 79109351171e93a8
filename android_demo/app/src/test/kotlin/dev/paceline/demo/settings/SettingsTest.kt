package dev.paceline.demo.settings

import dev.paceline.core.Backend
import dev.paceline.core.Sampling
import dev.paceline.demo.engine.ModelSource
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNull

class SettingsTest {
    private class Values(val map: MutableMap<String, String> = mutableMapOf()) : KeyValues {
        override fun get(key: String) = map[key]

        override fun put(values: Map<String, String?>) {
            for ((key, value) in values) if (value == null) map.remove(key) else map[key] = value
        }
    }

    @Test
    fun `what is saved is loaded`() {
        val all = listOf(
            Settings(),
            Settings(LoadSettings(4, 2048, Backend.GPU), 3, 0.7f, 40, 0.95),
            Settings(LoadSettings(backend = Backend.NPU), 0, 0f, 0, 1.0),
        )
        for (settings in all) {
            val store = SettingsStore(Values()).apply { save(settings) }
            assertEquals(Stored(settings, emptyList()), store.load())
        }
    }

    @Test
    fun `defaults are not stored`() {
        val values = Values()
        SettingsStore(values).run {
            save(Settings(draftLength = 2))
            save(Settings())
        }
        assertEquals(emptyMap<String, String>(), values.map)
    }

    @Test
    fun `stored values that are not allowed become defaults and are named`() {
        val bad = mapOf("threads" to "99", "context" to "many", "backend" to "tpu", "draft" to "8", "temperature" to "NaN", "top_k" to "-1")
        val stored = SettingsStore(Values((bad + ("top_p" to "0.5")).toMutableMap())).load()
        assertEquals(Settings(topP = 0.5), stored.settings)
        assertEquals(bad, stored.refused.associate { it.field.key to it.text })
    }

    @Test
    fun `texts at the edges`() {
        val at = Settings()
        assertEquals(7, at.with(Field.DRAFT, "7")?.draftLength)
        assertEquals(-1, at.with(Field.DRAFT, AUTO_TEXT)?.draftLength)
        assertEquals(0, at.with(Field.DRAFT, OFF_TEXT)?.draftLength)
        assertNull(at.with(Field.DRAFT, "0"))
        assertEquals(1.0, at.with(Field.TOP_P, " 1 ")?.topP)
        assertNull(at.with(Field.TOP_P, "0"))
        assertNull(at.with(Field.TEMPERATURE, "2.1"))
        assertNull(at.with(Field.CONTEXT, "127"))
        assertEquals(at, Settings(topK = 5).with(Field.TOP_K, ""))
    }

    @Test
    fun `what is not chosen is the checkpoint's own`() {
        val asked = Sampling(1f, 64, 0.95)
        assertEquals(asked, Settings().sampling(asked))
        assertEquals(Sampling(0f, 64, 0.95), Settings(temperature = 0f).sampling(asked))
    }

    @Test
    fun `the chosen model is kept`() {
        val chosen = ChosenModel(Values())
        assertNull(chosen.load())
        for (source in listOf(ModelSource.Folder("a", "/a"), ModelSource.Tree("b", "content://b"))) {
            chosen.save(source)
            assertEquals(source, chosen.load())
        }
    }
}
