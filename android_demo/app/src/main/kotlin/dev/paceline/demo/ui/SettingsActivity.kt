package dev.paceline.demo.ui

import android.app.Activity
import android.os.Bundle
import android.view.View
import android.widget.ArrayAdapter
import android.widget.EditText
import android.widget.Spinner
import android.widget.TextView
import dev.paceline.core.Backend
import dev.paceline.core.GenerateSettings
import dev.paceline.demo.App
import dev.paceline.demo.R
import dev.paceline.demo.engine.ModelState
import dev.paceline.demo.engine.ProblemException
import dev.paceline.demo.settings.CONTEXT
import dev.paceline.demo.settings.Field
import dev.paceline.demo.settings.OFF_TEXT
import dev.paceline.demo.settings.Settings
import dev.paceline.demo.settings.TEMPERATURE
import dev.paceline.demo.settings.THREADS
import dev.paceline.demo.settings.TOP_K
import dev.paceline.demo.settings.text
import dev.paceline.demo.settings.with
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/** The settings as a form. What is typed is checked when it is saved; a backend that cannot be had says why. */
class SettingsActivity : Activity() {
    private val app by lazy { App.of(this) }
    private val scope = MainScope()
    private val reasons = mutableMapOf<Backend, String>()
    private lateinit var typed: Map<Field, EditText>
    private lateinit var draft: Spinner
    private lateinit var backend: Spinner

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.settings)
        setActionBar(findViewById(R.id.toolbar))
        findViewById<View>(R.id.root).padForSystemBars()
        typed = mapOf(
            Field.THREADS to findViewById(R.id.threads),
            Field.CONTEXT to findViewById(R.id.context),
            Field.TEMPERATURE to findViewById(R.id.temperature),
            Field.TOP_K to findViewById(R.id.top_k),
            Field.TOP_P to findViewById(R.id.top_p),
        )
        draft = spinner(R.id.draft, DRAFT_TEXTS.map(::draftName))
        backend = spinner(R.id.backend, Backend.entries.map { it.name })
        findViewById<View>(R.id.save).setOnClickListener { save() }
        if (savedInstanceState == null) fill(app.settings.load().settings)
        showSampling()
        scope.launch { showReasons() }
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    private fun fill(settings: Settings) {
        for ((field, view) in typed) view.setText(settings.text(field))
        draft.setSelection(DRAFT_TEXTS.indexOf(settings.text(Field.DRAFT)))
        backend.setSelection(settings.load.backend.ordinal)
    }

    private fun save() {
        val chosen = Backend.entries[backend.selectedItemPosition]
        reasons[chosen]?.let { return showBackendError(chosen, it) }
        val texts = typed.mapValues { it.value.text.toString() } +
            mapOf(Field.DRAFT to DRAFT_TEXTS[draft.selectedItemPosition], Field.BACKEND to chosen.name.lowercase())
        var settings = Settings()
        for ((field, text) in texts) settings = settings.with(field, text) ?: return showError(field)
        app.settings.save(settings)
        finish()
    }

    private fun showError(field: Field) {
        val view = typed.getValue(field)
        view.error = when (field) {
            Field.THREADS -> getString(R.string.allowed_whole, THREADS.first, THREADS.last)
            Field.CONTEXT -> getString(R.string.allowed_whole, CONTEXT.first, CONTEXT.last)
            Field.TOP_K -> getString(R.string.allowed_whole, TOP_K.first, TOP_K.last)
            Field.TEMPERATURE -> getString(R.string.allowed_number, TEMPERATURE.start, TEMPERATURE.endInclusive)
            else -> getString(R.string.allowed_top_p)
        }
        view.requestFocus()
    }

    private fun showBackendError(backend: Backend, reason: String) {
        findViewById<TextView>(R.id.backend_error).apply {
            isVisible = true
            text = getString(R.string.backend_reason, backend.name, reason)
        }
    }

    /** What an empty field means, where a model is loaded. */
    private fun showSampling() {
        val asked = (app.engine.state.value.model as? ModelState.Ready)?.info?.sampling ?: return
        typed.getValue(Field.TEMPERATURE).hint = getString(R.string.hint_model, asked.temperature.toString())
        typed.getValue(Field.TOP_K).hint = getString(R.string.hint_model, asked.topK.toString())
        typed.getValue(Field.TOP_P).hint = getString(R.string.hint_model, asked.topP.toString())
    }

    private suspend fun showReasons() {
        val texts = Texts(this)
        val found = withContext(Dispatchers.IO) {
            Backend.entries.associateWith {
                try {
                    app.opener.reasonAgainst(it)
                } catch (error: ProblemException) {
                    texts.of(error.problem)
                }
            }
        }
        for ((backend, reason) in found) if (reason != null) reasons[backend] = reason
        val lines = reasons.map { (backend, reason) -> getString(R.string.backend_reason, backend.name, reason) }
        findViewById<TextView>(R.id.backend_reasons).text = lines.joinToString("\n")
    }

    private fun spinner(id: Int, names: List<String>): Spinner = findViewById<Spinner>(id).apply {
        adapter = ArrayAdapter(this@SettingsActivity, android.R.layout.simple_spinner_item, names).apply {
            setDropDownViewResource(android.R.layout.simple_spinner_dropdown_item)
        }
    }

    private fun draftName(text: String): String = when (text) {
        "" -> getString(R.string.draft_auto)
        OFF_TEXT -> getString(R.string.draft_off)
        else -> text.toInt().let { resources.getQuantityString(R.plurals.drafts, it, it) }
    }

    private companion object {
        /** As they are stored; the empty one is auto. */
        val DRAFT_TEXTS = listOf("", OFF_TEXT) + (1..GenerateSettings.MOST_DRAFTS).map(Int::toString)
    }
}
