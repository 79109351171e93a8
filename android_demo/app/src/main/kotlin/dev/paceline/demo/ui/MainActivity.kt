package dev.paceline.demo.ui

import android.app.Activity
import android.content.ClipData
import android.content.ClipboardManager
import android.content.Intent
import android.os.Bundle
import android.view.Menu
import android.view.MenuItem
import dev.paceline.demo.App
import dev.paceline.demo.R
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/** The conversation. It shows the engine's state and passes on orders; turned or left, it loses nothing. */
class MainActivity : Activity() {
    private val app by lazy { App.of(this) }
    private lateinit var views: MainViews
    private var scope: CoroutineScope? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.main)
        setActionBar(findViewById(R.id.toolbar))
        views = MainViews(
            this,
            onSend = ::send,
            onStop = app.engine::stop,
            onModels = ::openModels,
            onCopy = ::copy,
            onDismissNotice = ::dismissNotice,
            onDismissComparison = app.engine::dismissComparison,
        )
        savedInstanceState?.getIntArray(OPEN_THOUGHTS)?.let { views.messages.openThoughts += it.toList() }
    }

    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        outState.putIntArray(OPEN_THOUGHTS, views.messages.openThoughts.toIntArray())
    }

    override fun onStart() {
        super.onStart()
        val scope = MainScope().also { scope = it }
        scope.launch {
            withContext(Dispatchers.IO) { app.selectAtStart() }
            app.engine.state.collect {
                views.show(it, app.startNotice)
                delay(BETWEEN_VIEWS_MS) // a fast model has more tokens than eyes need
            }
        }
        scope.launch {
            while (true) {
                views.show(withContext(Dispatchers.IO) { app.device.readings() })
                delay(BETWEEN_READINGS_MS)
            }
        }
    }

    override fun onStop() {
        scope?.cancel()
        super.onStop()
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.main, menu)
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        when (item.itemId) {
            R.id.new_chat -> app.engine.newChat()
            R.id.compare -> app.engine.compare(getString(R.string.compare_prompt))
            R.id.models -> openModels()
            R.id.settings -> startActivity(Intent(this, SettingsActivity::class.java))
            else -> return super.onOptionsItemSelected(item)
        }
        return true
    }

    private fun send(text: String): Boolean = app.engine.send(text)

    private fun openModels() = startActivity(Intent(this, ModelsActivity::class.java))

    private fun copy(text: String) =
        getSystemService(ClipboardManager::class.java).setPrimaryClip(ClipData.newPlainText(getString(R.string.author_model), text))

    private fun dismissNotice() {
        app.dismissStartNotice()
        app.engine.dismissProblem()
        views.show(app.engine.state.value, app.startNotice)
    }

    private companion object {
        const val OPEN_THOUGHTS = "open_thoughts"
        const val BETWEEN_VIEWS_MS = 50L
        const val BETWEEN_READINGS_MS = 1_000L
    }
}
