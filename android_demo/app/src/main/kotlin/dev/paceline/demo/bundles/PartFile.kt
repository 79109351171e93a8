package dev.paceline.demo.bundles

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.StandardOpenOption.CREATE
import java.nio.file.StandardOpenOption.WRITE
import kotlin.io.path.readText
import kotlin.io.path.writeText

/** A file on its way, and beside it the version that its bytes are of. */
internal class PartFile(private val path: Path) {
    private val note = path.resolveSibling(".${path.fileName}.version") // hidden, so no name of a bundle's file
    val name = path.fileName.toString()

    fun length(): Long = if (Files.exists(path)) Files.size(path) else 0

    fun validator(): String? = if (Files.exists(note)) note.readText().ifEmpty { null } else null

    fun delete() {
        Files.deleteIfExists(path)
        Files.deleteIfExists(note)
    }

    fun restart(reason: String): Nothing {
        delete()
        throw IOException(reason)
    }

    /** Gives `body` a function that writes from `start` on. */
    fun write(start: Long, validator: String?, body: ((ByteBuffer) -> Unit) -> Unit) {
        storing { FileChannel.open(path, CREATE, WRITE) }.use { file ->
            storing {
                file.truncate(start)
                file.position(start)
                note.writeText(validator.orEmpty())
            }
            body { bytes -> storing { while (bytes.hasRemaining()) file.write(bytes) } }
            storing { file.force(true) }
        }
    }

    fun wrongLength(expected: Long, found: Long) = DownloadException(DownloadProblem.WrongLength(name, expected, found))

    /** Trouble with the disk is no trouble with the network, and no reason to try again. */
    private fun <T> storing(write: () -> T): T =
        try {
            write()
        } catch (error: IOException) {
            throw DownloadException(DownloadProblem.Storage(error.message ?: error.toString()))
        }
}
