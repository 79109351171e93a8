package dev.paceline.demo.bundles

import java.io.ByteArrayOutputStream
import java.io.IOException
import java.net.HttpURLConnection
import java.net.URI
import java.nio.ByteBuffer
import java.nio.file.Files
import java.nio.file.Path

/**
 * One file over HTTP. Broken connections are tried again, later each time, and go on where the file ends.
 *
 * Only an answer that certainly belongs to the bytes that are there is added to them: its Content-Range must begin at their end, and
 * If-Range asks the server for the whole file (200) where it has changed. Otherwise the file is begun anew.
 */
class Transfer(private val limits: TransferLimits = TransferLimits()) {
    private val http = Http(limits)

    /** Throws [DownloadException] and [CancelledException]. */
    fun text(from: URI, mostBytes: Int, cancellation: Cancellation): String = retrying(nameOf(from), cancellation, { 0 }) {
        http.get(from, emptyMap()) { answer ->
            if (answer.responseCode != HttpURLConnection.HTTP_OK) http.refuse(nameOf(from), answer)
            val bytes = ByteArrayOutputStream()
            read(answer, cancellation) { buffer, count ->
                bytes.write(buffer, 0, count)
                if (bytes.size() > mostBytes) {
                    throw DownloadException(DownloadProblem.NotABundle("${nameOf(from)} is larger than $mostBytes bytes"))
                }
            }
            bytes.toString(Charsets.UTF_8.name())
        }
    }

    /** Makes `to` a file of `bytes` bytes; `progress` is told its length. Throws [DownloadException] and [CancelledException]. */
    fun file(from: URI, to: Path, bytes: Long, cancellation: Cancellation, progress: (Long) -> Unit) {
        val part = PartFile(to)
        if (part.length() > bytes) part.delete()
        retrying(nameOf(from), cancellation, part::length) {
            val have = part.length()
            progress(have)
            if (have == bytes && Files.exists(to)) return@retrying
            val validator = part.validator()
            if (have > 0 && validator != null) {
                val headers = mapOf("Range" to "bytes=$have-", "If-Range" to validator)
                http.get(from, headers) { receive(it, have, part, bytes, cancellation, progress) }
            } else {
                http.get(from, emptyMap()) { receive(it, 0, part, bytes, cancellation, progress) }
            }
        }
    }

    private fun receive(
        answer: HttpURLConnection,
        have: Long,
        part: PartFile,
        bytes: Long,
        cancellation: Cancellation,
        progress: (Long) -> Unit,
    ) {
        val start = when (answer.responseCode) {
            HttpURLConnection.HTTP_OK -> 0
            HttpURLConnection.HTTP_PARTIAL -> have
            RANGE_NOT_SATISFIABLE -> part.restart("the server has no such range")
            else -> http.refuse(part.name, answer)
        }
        val isPart = answer.responseCode == HttpURLConnection.HTTP_PARTIAL
        if (isPart && !continues(answer.getHeaderField("Content-Range"), start, bytes)) part.restart("the server sent another range")
        if (isPart && validatorOf(answer).let { it != null && it != part.validator() }) part.restart("the file has changed")
        val announced = answer.contentLengthLong
        if (announced >= 0 && start + announced != bytes) throw part.wrongLength(bytes, start + announced)
        part.write(start, validatorOf(answer) ?: part.validator().takeIf { isPart }) { write ->
            var length = start
            read(answer, cancellation) { buffer, count ->
                length += count
                if (length > bytes) throw part.wrongLength(bytes, length)
                write(ByteBuffer.wrap(buffer, 0, count))
                progress(length)
            }
            if (length < bytes) throw IOException("the connection ended after $length of $bytes bytes")
        }
    }

    private fun read(answer: HttpURLConnection, cancellation: Cancellation, each: (ByteArray, Int) -> Unit) {
        val buffer = ByteArray(BUFFER_BYTES)
        while (true) {
            val count = answer.inputStream.read(buffer)
            cancellation.check()
            if (count < 0) return
            each(buffer, count)
        }
    }

    /** Tries as often as allowed; an attempt that brings the file well beyond all earlier ones does not count. */
    private fun <T> retrying(name: String, cancellation: Cancellation, length: () -> Long, attempt: () -> T): T {
        var furthest = length()
        var left = limits.attempts
        var pauseMs = limits.firstPauseMs
        while (true) {
            cancellation.check()
            try {
                return attempt()
            } catch (error: IOException) {
                cancellation.check()
                if (length() >= furthest + WORTHWHILE_BYTES) {
                    left = limits.attempts
                    pauseMs = limits.firstPauseMs
                }
                furthest = maxOf(furthest, length())
                if (--left == 0) throw DownloadException(DownloadProblem.Lost(name, error.message ?: error.toString()))
            }
            cancellation.pause(pauseMs)
            pauseMs = minOf(2 * pauseMs, limits.longestPauseMs)
        }
    }

    private companion object {
        const val RANGE_NOT_SATISFIABLE = 416
        const val BUFFER_BYTES = 1 shl 16
        const val WORTHWHILE_BYTES = 1L shl 20
    }
}

private fun nameOf(address: URI) = address.path.substringAfterLast('/')

/** Whether a Content-Range is the rest of a file from `start` on. */
internal fun continues(contentRange: String?, start: Long, bytes: Long): Boolean {
    val (first, last, whole) = CONTENT_RANGE.matchEntire(contentRange.orEmpty().trim())?.destructured ?: return false
    return first.toLongOrNull() == start && last.toLongOrNull() == bytes - 1 && (whole == "*" || whole.toLongOrNull() == bytes)
}

private val CONTENT_RANGE = Regex("bytes (\\d+)-(\\d+)/(\\d+|\\*)")

/** What a file's version is called: If-Range takes a strong ETag or else a date. */
internal fun validatorOf(answer: HttpURLConnection): String? =
    answer.getHeaderField("ETag")?.takeIf { it.startsWith("\"") } ?: answer.getHeaderField("Last-Modified")
