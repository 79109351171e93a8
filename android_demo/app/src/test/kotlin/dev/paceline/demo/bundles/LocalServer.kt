package dev.paceline.demo.bundles

import java.io.BufferedReader
import java.io.IOException
import java.net.InetAddress
import java.net.ServerSocket
import java.net.Socket
import java.util.concurrent.CopyOnWriteArrayList
import kotlin.concurrent.thread

data class Request(val name: String, val headers: Map<String, String>) {
    val range get() = headers["range"]
}

/**
 * @property headers an empty value leaves one out.
 * @property sent how much of the body is sent before the connection ends.
 * @property stallMs how long it is silent before.
 */
class Answer(
    val status: Int,
    val headers: Map<String, String>,
    val body: ByteArray = ByteArray(0),
    val sent: Int = body.size,
    val stallMs: Long = 0,
)

/**
 * An HTTP server that can also lie, cut off and stall, which a library's would not. It answers ranges properly unless `instead` has
 * another answer. Android's classes for unit tests have no server of the JDK's.
 */
class LocalServer(var files: Map<String, ByteArray>, private val instead: (Request) -> Answer? = { null }) : AutoCloseable {
    private val socket = ServerSocket(0, 50, InetAddress.getLoopbackAddress())
    val requests = CopyOnWriteArrayList<Request>()
    var version = "\"1\""
    val address = "http://127.0.0.1:${socket.localPort}/bundle"

    init {
        thread(isDaemon = true) {
            while (!socket.isClosed) {
                try {
                    val client = socket.accept()
                    thread(isDaemon = true) { client.use(::serve) }
                } catch (_: IOException) { // closed
                }
            }
        }
    }

    fun requestsOf(name: String) = requests.filter { it.name == name }

    override fun close() = socket.close()

    private fun serve(client: Socket) {
        val reader = client.getInputStream().bufferedReader()
        val name = reader.readLine()?.split(" ")?.get(1)?.substringAfterLast('/') ?: return
        val request = Request(name, headers(reader))
        requests += request
        val answer = instead(request) ?: proper(request)
        val headers = mapOf("Content-Length" to answer.body.size.toString(), "Connection" to "close") + answer.headers
        val head = headers.entries.filter { it.value.isNotEmpty() }.joinToString("") { "${it.key}: ${it.value}\r\n" }
        try {
            val out = client.getOutputStream()
            out.write("HTTP/1.1 ${answer.status} x\r\n$head\r\n".toByteArray())
            out.write(answer.body, 0, answer.sent)
            out.flush()
            Thread.sleep(answer.stallMs)
        } catch (_: IOException) { // the client left
        }
    }

    private fun headers(reader: BufferedReader) = generateSequence { reader.readLine()?.ifEmpty { null } }
        .associate { it.substringBefore(':').lowercase() to it.substringAfter(':').trim() }

    fun proper(request: Request): Answer {
        val body = files[request.name] ?: return Answer(404, emptyMap())
        val start = request.range?.removePrefix("bytes=")?.removeSuffix("-")?.toInt()
        if (start == null || request.headers["if-range"] != version) return Answer(200, mapOf("ETag" to version), body)
        val range = "bytes $start-${body.size - 1}/${body.size}"
        return Answer(206, mapOf("ETag" to version, "Content-Range" to range), body.copyOfRange(start, body.size))
    }
}
