package dev.paceline.demo.bundles

import java.io.IOException
import java.net.URI
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.security.MessageDigest
import kotlin.io.path.readText
import kotlin.io.path.writeText

/** How far a download is. @property file what is being read, or hashed where `checking`. */
data class DownloadProgress(val file: String, val checking: Boolean, val done: Long, val of: Long)

/**
 * A bundle over HTTP into `folder`. It is `NAME.partial/` until every file has the hash that the manifest says; then it is renamed, so
 * a bundle is complete or absent. A download that ended goes on with what is there. `soc` is this phone's chip, for whose NPU a bundle
 * may have graphs.
 */
class BundleDownload(
    private val folder: Path,
    private val soc: String = "",
    private val transfer: Transfer = Transfer(),
    private val freeBytes: (Path) -> Long = { it.toFile().usableSpace },
) {
    /** Throws [DownloadException] and [CancelledException]. */
    fun run(address: String, name: String, cancellation: Cancellation, progress: (DownloadProgress) -> Unit): Path {
        val base = bundleAddress(address) ?: throw DownloadException(DownloadProblem.BadAddress(address))
        if (!isBundleName(name)) throw DownloadException(DownloadProblem.BadName(name))
        val bundle = folder.resolve(name)
        if (Files.exists(bundle)) throw DownloadException(DownloadProblem.Exists(name))
        try {
            val partial = Files.createDirectories(folder.resolve(name + PARTIAL))
            fetch(base, partial, cancellation, progress)
            return Files.move(partial, bundle, ATOMIC_MOVE)
        } catch (error: IOException) { // the network's are dealt with, so it is the disk's
            throw DownloadException(DownloadProblem.Storage(error.message ?: error.toString()))
        }
    }

    private fun fetch(base: URI, partial: Path, cancellation: Cancellation, progress: (DownloadProgress) -> Unit) {
        val json = transfer.text(base.file(MANIFEST), MANIFEST_BYTES, cancellation)
        val manifest = BundleManifest.parse(json, soc)
        val kept = partial.resolve(MANIFEST)
        if (!Files.exists(kept) || kept.readText() != json) emptyFolder(partial) // another version's files do not fit
        kept.writeText(json)
        partial.resolve(ADDRESS_NOTE).writeText(base.toString())
        checkSpace(partial, manifest)
        var before = 0L
        for (file in manifest.files) {
            val tell = { checking: Boolean, done: Long -> progress(DownloadProgress(file.name, checking, before + done, manifest.bytes)) }
            fetch(base, file, partial.resolve(file.name), cancellation, tell)
            before += file.bytes
        }
        filesOf(partial).filter { it.fileName.toString().startsWith(".") }.forEach(Files::delete)
    }

    private fun fetch(base: URI, file: BundleFile, to: Path, cancellation: Cancellation, tell: (Boolean, Long) -> Unit) {
        val continued = Files.exists(to)
        transfer.file(base.file(file.name), to, file.bytes, cancellation) { tell(false, it) }
        tell(true, file.bytes)
        if (sha256(to, cancellation) == file.sha256) return
        Files.delete(to)
        if (!continued) throw DownloadException(DownloadProblem.WrongHash(file.name))
        fetch(base, file, to, cancellation, tell) // the bytes of an earlier download may be to blame
    }

    private fun checkSpace(partial: Path, manifest: BundleManifest) {
        val there = manifest.files.map { partial.resolve(it.name) }.filter(Files::exists).sumOf(Files::size)
        val needed = manifest.bytes - there + SPACE_MARGIN_BYTES
        val free = freeBytes(partial)
        if (free < needed) throw DownloadException(DownloadProblem.NoSpace(needed, free))
    }

    internal companion object {
        /** In a folder that is not complete: where it comes from. */
        const val ADDRESS_NOTE = ".address"
        private const val MANIFEST_BYTES = 4 shl 20

        /** A full disk troubles the whole phone. */
        private const val SPACE_MARGIN_BYTES = 64L shl 20
    }
}

private fun URI.file(name: String) = URI("$this/$name") // plain names need no escapes

private fun sha256(path: Path, cancellation: Cancellation): String {
    val digest = MessageDigest.getInstance("SHA-256")
    Files.newInputStream(path).use {
        val buffer = ByteArray(1 shl 20)
        while (true) {
            cancellation.check()
            val count = it.read(buffer)
            if (count < 0) break
            digest.update(buffer, 0, count)
        }
    }
    return digest.digest().joinToString("") { "%02x".format(it) }
}
