package dev.paceline.demo.bundles

import java.io.IOException
import java.nio.file.Files
import java.nio.file.Path
import kotlin.io.path.readText

/**
 * @property bytes null where the folder cannot be read.
 * @property address where a bundle that is not complete comes from; null for complete ones.
 */
data class StoredBundle(val name: String, val path: Path, val bytes: Long?, val address: String?)

/** The bundles of a folder, by name: those with a manifest, and downloads that can go on. */
fun listBundles(folder: Path): List<StoredBundle> {
    if (!Files.isDirectory(folder)) return emptyList()
    return filesOf(folder).filter { Files.isDirectory(it) }.mapNotNull(::storedBundle).sortedBy { it.name }
}

/** False where something could not be deleted. */
fun deleteBundle(bundle: StoredBundle): Boolean = bundle.path.toFile().deleteRecursively()

private fun storedBundle(path: Path): StoredBundle? {
    val name = path.fileName.toString()
    val note = path.resolve(BundleDownload.ADDRESS_NOTE)
    return try {
        val bytes = filesOf(path).sumOf(Files::size)
        when {
            name.endsWith(PARTIAL) && Files.exists(note) -> StoredBundle(name.removeSuffix(PARTIAL), path, bytes, note.readText())
            !name.endsWith(PARTIAL) && Files.exists(path.resolve(MANIFEST)) -> StoredBundle(name, path, bytes, null)
            else -> null
        }
    } catch (_: IOException) { // a folder that adb made can belong to another user
        StoredBundle(name, path, null, null)
    }
}

internal fun emptyFolder(folder: Path) = filesOf(folder).forEach(Files::deleteIfExists)

internal fun filesOf(folder: Path): List<Path> = Files.newDirectoryStream(folder).use { it.toList() }
