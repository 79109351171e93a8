package dev.paceline.demo.device

import android.content.ContentResolver
import android.net.Uri
import dev.paceline.core.Backend
import dev.paceline.core.LoadOptions
import dev.paceline.core.LoadProgress
import dev.paceline.core.Model
import dev.paceline.demo.engine.CoreModel
import dev.paceline.demo.engine.LoadedModel
import dev.paceline.demo.engine.ModelOpener
import dev.paceline.demo.engine.ModelSource
import dev.paceline.demo.engine.Problem
import dev.paceline.demo.engine.ProblemException
import dev.paceline.demo.engine.loadCore
import dev.paceline.demo.settings.LoadSettings

/** Loads models with the core, with what this device can give. */
class AndroidOpener(private val resolver: ContentResolver, private val device: Device) : ModelOpener {
    override fun open(source: ModelSource, settings: LoadSettings, progress: LoadProgress): LoadedModel {
        loadCore()
        val options = LoadOptions(
            library = device.runtimeLibrary(),
            cacheDir = device.cacheDir(),
            threads = settings.threads,
            context = settings.context,
            target = settings.backend,
            drafter = settings.backend,
            npuLibraries = device.nativeLibraries(),
            allowFallback = true, // a bundle may lack the graphs of this phone's chip; the model's line then says so
            memoryBudget = device.memoryBudget(),
        )
        return CoreModel(
            when (source) {
                is ModelSource.Folder -> Model.open(source.path, options, progress)
                is ModelSource.Tree -> openTree(source, options, progress)
            },
        )
    }

    /** Why a backend cannot be used here; null where it can be tried. Takes a moment. */
    fun reasonAgainst(backend: Backend): String? {
        loadCore()
        return Model.reasonAgainst(backend, device.runtimeLibrary(), device.nativeLibraries())
    }

    private fun openTree(source: ModelSource.Tree, options: LoadOptions, progress: LoadProgress): Model {
        val files = TreeFiles.open(resolver, Uri.parse(source.uri)) ?: throw ProblemException(Problem.TreeGone(source.name))
        return files.use { Model.open(it.descriptors, options, progress) }
    }
}
