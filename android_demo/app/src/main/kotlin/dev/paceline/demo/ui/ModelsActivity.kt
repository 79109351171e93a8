package dev.paceline.demo.ui

import android.app.Activity
import android.app.AlertDialog
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.view.View
import android.view.WindowManager
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ProgressBar
import android.widget.TextView
import dev.paceline.demo.App
import dev.paceline.demo.R
import dev.paceline.demo.bundles.DownloadState
import dev.paceline.demo.bundles.deleteBundle
import dev.paceline.demo.bundles.listBundles
import dev.paceline.demo.device.chosenTrees
import dev.paceline.demo.device.forgetTree
import dev.paceline.demo.device.keepTree
import dev.paceline.demo.engine.ModelSource
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/** Where a model comes from: the app's folder, a folder of the file picker, or a download. */
class ModelsActivity : Activity() {
    private val app by lazy { App.of(this) }
    private val texts by lazy { DownloadTexts(this) }
    private val rows by lazy { findViewById<LinearLayout>(R.id.models) }
    private val address by lazy { findViewById<EditText>(R.id.address) }
    private val name by lazy { findViewById<EditText>(R.id.name) }
    private var scope: CoroutineScope? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.models)
        setActionBar(findViewById(R.id.toolbar))
        findViewById<View>(R.id.root).padForSystemBars()
        findViewById<TextView>(R.id.folder).text = getString(R.string.models_folder, app.modelsFolder.toString())
        findViewById<View>(R.id.pick).setOnClickListener { startActivityForResult(Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), PICK) }
        findViewById<View>(R.id.download).setOnClickListener { download(address.text.toString(), name.text.toString()) }
        findViewById<View>(R.id.cancel).setOnClickListener { app.downloads.cancel() }
    }

    override fun onStart() {
        super.onStart()
        val scope = MainScope().also { scope = it }
        scope.launch {
            app.downloads.state.collect {
                show(it)
                if (it !is DownloadState.Running) list()
                delay(BETWEEN_VIEWS_MS)
            }
        }
    }

    override fun onStop() {
        scope?.cancel()
        super.onStop()
    }

    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val tree = data?.data ?: return
        if (requestCode == PICK && resultCode == RESULT_OK) use(keepTree(contentResolver, tree))
    }

    private fun download(address: String, name: String) {
        val last = address.trim().trimEnd('/').substringAfterLast('/')
        app.downloads.start(address, name.trim().ifEmpty { last })
    }

    private fun use(source: ModelSource) {
        app.select(source)
        finish()
    }

    private fun show(state: DownloadState) {
        val running = state as? DownloadState.Running
        findViewById<TextView>(R.id.download_text).show(texts.of(state))
        findViewById<View>(R.id.download).isEnabled = running == null
        findViewById<View>(R.id.cancel).isVisible = running != null
        findViewById<ProgressBar>(R.id.download_progress).apply {
            isVisible = running != null
            isIndeterminate = running?.progress == null
            running?.progress?.let { progress = (max * it.done / maxOf(1, it.of)).toInt() }
        }
        // The system may end a download in the background; it goes on from there the next time.
        val keepOn = WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON
        if (running != null) window.addFlags(keepOn) else window.clearFlags(keepOn)
    }

    private suspend fun list() {
        val (bundles, trees) = withContext(Dispatchers.IO) { listBundles(app.modelsFolder) to chosenTrees(contentResolver) }
        rows.removeAllViews()
        for (bundle in bundles) {
            val row = ModelRow(this, rows, bundle.name) { confirmDelete(bundle.name) { deleteBundle(bundle) } }
            val from = bundle.address
            when {
                bundle.bytes == null -> row.unreadable()
                from == null -> row.stored(bundle.bytes) { use(ModelSource.Folder(bundle.name, bundle.path.toString())) }
                else -> row.partial(bundle.bytes) { download(from, bundle.name) }
            }
        }
        for (tree in trees) {
            val forget = { confirmDelete(tree.name) { forgetTree(contentResolver, Uri.parse(tree.uri)) } }
            ModelRow(this, rows, tree.name, forget).tree { use(tree) }
        }
        findViewById<View>(R.id.none).isVisible = rows.childCount == 0
    }

    private fun confirmDelete(name: String, delete: () -> Unit) {
        AlertDialog.Builder(this)
            .setMessage(getString(R.string.delete_question, name))
            .setNegativeButton(android.R.string.cancel, null)
            .setPositiveButton(R.string.delete) { _, _ ->
                scope?.launch {
                    withContext(Dispatchers.IO) { delete() }
                    list()
                }
            }
            .show()
    }

    private companion object {
        const val PICK = 1
        const val BETWEEN_VIEWS_MS = 100L
    }
}
