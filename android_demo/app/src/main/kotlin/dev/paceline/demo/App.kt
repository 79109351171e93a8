package dev.paceline.demo

import android.app.Application
import android.content.Context
import android.os.Build
import dev.paceline.demo.bundles.BundleDownload
import dev.paceline.demo.bundles.Downloads
import dev.paceline.demo.bundles.listBundles
import dev.paceline.demo.device.AndroidOpener
import dev.paceline.demo.device.Device
import dev.paceline.demo.device.LastExit
import dev.paceline.demo.device.freesModel
import dev.paceline.demo.engine.Engine
import dev.paceline.demo.engine.ModelSource
import dev.paceline.demo.engine.ModelState
import dev.paceline.demo.settings.ChosenModel
import dev.paceline.demo.settings.Refused
import dev.paceline.demo.settings.SettingsStore
import java.io.File
import java.nio.file.Path
import java.util.concurrent.Executors
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.asCoroutineDispatcher

/** What lives as long as the process: screens come and go, and observe. */
class App : Application() {
    private val values by lazy { Preferences(getSharedPreferences("settings", MODE_PRIVATE)) }
    private val chosenModel by lazy { ChosenModel(values) }

    val device by lazy { Device(this) }
    val settings by lazy { SettingsStore(values) }
    val opener by lazy { AndroidOpener(contentResolver, device) }
    val downloads by lazy { Downloads(BundleDownload(modelsFolder, Build.SOC_MODEL), Dispatchers.IO) }
    val engine by lazy {
        Engine(
            opener,
            settings = { settings.load().settings },
            keepDraftLength = { settings.save(settings.load().settings.copy(draftLength = it)) },
            worker = Executors.newSingleThreadExecutor().asCoroutineDispatcher(),
        )
    }

    /** Where adb and downloads put bundles; without external storage only downloads can. */
    val modelsFolder: Path by lazy { (getExternalFilesDir(MODELS) ?: File(filesDir, MODELS)).toPath() }

    /** What a user should know of the time before this start; empty once it is read. */
    var startNotice: StartNotice = StartNotice(null, emptyList())
        private set

    override fun onCreate() {
        super.onCreate()
        startNotice = StartNotice(newExit(), settings.load().refused)
    }

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        if (freesModel(level)) engine.free()
    }

    fun dismissStartNotice() {
        startNotice = StartNotice(null, emptyList())
        val stored = settings.load()
        if (stored.refused.isNotEmpty()) settings.save(stored.settings) // so that they are named once
    }

    fun select(source: ModelSource) {
        chosenModel.save(source)
        engine.select(source)
    }

    /** Loads the model of the last time or, where there is only one, that one. */
    fun selectAtStart() {
        if (engine.state.value.model != ModelState.None) return
        val only = listBundles(modelsFolder).filter { it.address == null }.singleOrNull()
        val source = chosenModel.load() ?: only?.let { ModelSource.Folder(it.name, it.path.toString()) } ?: return
        engine.select(source)
    }

    /** An end of the process that was not told before. */
    private fun newExit(): LastExit? {
        val (time, exit) = device.lastExit() ?: return null
        if (values.get(EXIT_SEEN) == time.toString()) return null
        values.put(mapOf(EXIT_SEEN to time.toString()))
        return exit
    }

    companion object {
        private const val MODELS = "models"
        private const val EXIT_SEEN = "exit_seen"

        fun of(context: Context) = context.applicationContext as App
    }
}

data class StartNotice(val exit: LastExit?, val refused: List<Refused>)
