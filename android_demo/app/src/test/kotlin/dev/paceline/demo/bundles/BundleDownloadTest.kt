package dev.paceline.demo.bundles

import dev.paceline.demo.engine.await
import java.nio.file.Files
import java.nio.file.Path
import java.security.MessageDigest
import java.util.concurrent.atomic.AtomicInteger
import kotlin.concurrent.thread
import kotlin.io.path.exists
import kotlin.io.path.readBytes
import kotlin.io.path.writeBytes
import kotlin.random.Random
import kotlin.test.AfterTest
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertTrue

class BundleDownloadTest {
    private val folder: Path = Files.createTempDirectory("models")
    private val limits = TransferLimits(attempts = 3, firstPauseMs = 1, longestPauseMs = 2)
    private val target = Random(1).nextBytes(300_000)
    private val files = mapOf("target.tflite" to target, "drafter.tflite" to Random(2).nextBytes(5_000), "tokenizer.bin" to ByteArray(10))
    private val servers = mutableListOf<LocalServer>()

    @AfterTest
    fun end() {
        servers.forEach { it.close() }
        folder.toFile().deleteRecursively()
    }

    private fun serve(instead: (Request) -> Answer? = { null }) =
        LocalServer(files + (MANIFEST to manifest(files).toByteArray()), instead).also { servers += it }

    private fun manifest(files: Map<String, ByteArray>, target: String = "target.tflite"): String {
        val listed = files.entries.joinToString { "\"${it.key}\": {\"bytes\": ${it.value.size}, \"sha256\": \"${sha256(it.value)}\"}" }
        val parts = "\"target\": \"$target\", \"drafter\": \"drafter.tflite\""
        return """{"format": "paceline-bundle", "graphs": {"litert": {"parts": {$parts}}}, "files": {$listed, "other.onnx": {}}}"""
    }

    private fun sha256(bytes: ByteArray) = MessageDigest.getInstance("SHA-256").digest(bytes).joinToString("") { "%02x".format(it) }

    private fun download(address: String, name: String = "small", free: Long = Long.MAX_VALUE, limits: TransferLimits = this.limits) =
        BundleDownload(folder, transfer = Transfer(limits)) { free }.run(address, name, Cancellation()) {}

    private fun problem(address: String, name: String = "small", free: Long = Long.MAX_VALUE) =
        assertFailsWith<DownloadException> { download(address, name, free = free) }.problem

    private fun assertComplete(made: Path = folder.resolve("small")) {
        assertEquals((files.keys + MANIFEST).sorted(), filesOf(made).map { it.fileName.toString() }.sorted())
        for ((name, bytes) in files) assertContentEquals(bytes, made.resolve(name).readBytes())
        assertEquals(listOf("small"), filesOf(folder).map { it.fileName.toString() })
    }

    /** Answers the first requests of the target in another way. */
    private fun firstTargets(count: Int, answer: (Request) -> Answer): (Request) -> Answer? {
        val seen = AtomicInteger()
        return { if (it.name == "target.tflite" && seen.getAndIncrement() < count) answer(it) else null }
    }

    private fun cut(after: Int) = Answer(200, mapOf("ETag" to "\"1\""), target, sent = after)

    @Test
    fun `a bundle comes complete, and only what the core reads`() {
        val server = serve()
        assertEquals(folder.resolve("small"), download(server.address))
        assertComplete()
        assertFalse(server.requests.any { it.name == "other.onnx" })
    }

    @Test
    fun `a connection that is cut goes on where it ended`() {
        val server = serve(firstTargets(2) { cut(100_000) })
        download(server.address)
        assertComplete()
        assertEquals("bytes=100000-", server.requestsOf("target.tflite")[1].range)
    }

    @Test
    fun `a later download goes on with what is there`() {
        val broken = serve(firstTargets(99) { cut(200_000) })
        assertEquals("target.tflite", (problem(broken.address) as DownloadProblem.Lost).file)
        assertEquals(200_000, folder.resolve("small.partial/target.tflite").readBytes().size)
        assertEquals(broken.address, listBundles(folder).single().address)
        val whole = serve()
        download(whole.address)
        assertComplete()
        assertEquals("bytes=200000-", whole.requestsOf("target.tflite").single().range)
    }

    @Test
    fun `the whole file instead of a range begins anew`() {
        val server = serve(firstTargets(2) { if (it.range == null) cut(100_000) else Answer(200, mapOf("ETag" to "\"1\""), target) })
        download(server.address)
        assertComplete()
    }

    @Test
    fun `a file that changed in between begins anew`() {
        val server = serve(firstTargets(1) { Answer(200, mapOf("ETag" to "\"old\""), ByteArray(target.size), sent = 100_000) })
        download(server.address)
        assertComplete()
        assertEquals("\"old\"", server.requestsOf("target.tflite")[1].headers["if-range"])
    }

    @Test
    fun `a range of another version is not taken, also from a server that ignores If-Range`() {
        val server = serve(
            firstTargets(2) {
                if (it.range == null) return@firstTargets cut(100_000)
                Answer(206, mapOf("ETag" to "\"2\"", "Content-Range" to "bytes 100000-299999/300000"), ByteArray(200_000))
            },
        )
        download(server.address)
        assertComplete()
    }

    @Test
    fun `a wrong Content-Range is not taken`() {
        for (range in listOf("bytes 0-299999/300000", "bytes 100000-299999/999999", "bytes 100000-299998/300000", "", "100000")) {
            val server = serve(
                firstTargets(2) {
                    val other = Answer(206, mapOf("ETag" to "\"1\"", "Content-Range" to range), ByteArray(200_000))
                    if (it.range == null) cut(100_000) else other
                },
            )
            download(server.address)
            assertComplete()
            folder.resolve("small").toFile().deleteRecursively()
        }
    }

    @Test
    fun `without an ETag a cut file begins anew`() {
        val server = serve(firstTargets(1) { Answer(200, emptyMap(), target, sent = 1000) })
        download(server.address)
        assertComplete()
        assertEquals(null, server.requestsOf("target.tflite")[1].range)
    }

    @Test
    fun `a server that announces another length is refused at once`() {
        val server = serve(firstTargets(99) { Answer(200, emptyMap(), target + ByteArray(1)) })
        assertEquals(DownloadProblem.WrongLength("target.tflite", 300_000, 300_001), problem(server.address))
        assertEquals(1, server.requestsOf("target.tflite").size)
    }

    @Test
    fun `a file without end is not written to the disk`() {
        val server = serve(firstTargets(99) { Answer(200, mapOf("Content-Length" to ""), target + ByteArray(2_000_000)) })
        assertTrue(problem(server.address) is DownloadProblem.WrongLength)
        assertTrue(Files.size(folder.resolve("small.partial/target.tflite")) <= target.size)
    }

    @Test
    fun `a file that ends too soon, without a length, is tried again`() {
        val server = serve(firstTargets(99) { Answer(200, mapOf("Content-Length" to ""), target, sent = 5) })
        assertTrue(problem(server.address) is DownloadProblem.Lost)
        assertEquals(limits.attempts, server.requestsOf("target.tflite").size)
    }

    @Test
    fun `a wrong hash leaves no bundle`() {
        val server = serve(firstTargets(99) { Answer(200, emptyMap(), ByteArray(target.size)) })
        assertEquals(DownloadProblem.WrongHash("target.tflite"), problem(server.address))
        assertEquals(1, server.requestsOf("target.tflite").size)
        assertFalse(folder.resolve("small").exists())
    }

    @Test
    fun `bytes of an earlier download that were wrong are read again`() {
        serve(firstTargets(99) { cut(100_000) }).let { problem(it.address) }
        folder.resolve("small.partial/target.tflite").writeBytes(ByteArray(100_000))
        download(serve().address)
        assertComplete()
    }

    @Test
    fun `another manifest begins the bundle anew`() {
        serve(firstTargets(99) { cut(100_000) }).let { problem(it.address) }
        val server = serve()
        server.files += MANIFEST to (manifest(files) + "\n").toByteArray()
        download(server.address)
        assertComplete()
        assertEquals(null, server.requestsOf("target.tflite").single().range)
    }

    @Test
    fun `a server that stalls is tried again`() {
        val server = serve(firstTargets(1) { Answer(200, mapOf("ETag" to "\"1\""), target, sent = 1000, stallMs = 60_000) })
        download(server.address, limits = limits.copy(readTimeoutMs = 1000, attempts = 10))
        assertComplete()
        assertEquals("bytes=1000-", server.requestsOf("target.tflite")[1].range)
    }

    @Test
    fun `busy servers are tried again, and no means no`() {
        download(serve(firstTargets(1) { Answer(503, emptyMap()) }).address)
        assertComplete()
        val server = serve(firstTargets(99) { Answer(403, emptyMap()) })
        assertEquals(DownloadProblem.Refused("target.tflite", 403), problem(server.address, "other"))
        assertEquals(1, server.requestsOf("target.tflite").size)
    }

    @Test
    fun `redirects are followed, but not everywhere and not for ever`() {
        val server = serve()
        val near = serve { Answer(302, mapOf("Location" to "${server.address}/${it.name}")) }
        download(near.address)
        assertComplete()
        for (place in listOf("http://example.org/x", "file:///etc/passwd", "")) {
            val far = serve { Answer(302, mapOf("Location" to place)) }
            assertTrue(problem(far.address, "far") is DownloadProblem.Redirect)
        }
        val round = serve { Answer(307, mapOf("Location" to "/bundle/${it.name}")) }
        assertTrue(problem(round.address, "round") is DownloadProblem.Redirect)
        assertEquals(limits.redirects + 1, round.requests.size)
    }

    @Test
    fun `names with a directory in them are refused`() {
        for (name in listOf("../evil", "a/b", "/etc/passwd", "..", ".hidden", "a\\b", "")) {
            val server = serve()
            server.files += MANIFEST to manifest(files + (name to ByteArray(1)), target = name.replace("\\", "\\\\")).toByteArray()
            assertTrue(problem(server.address) is DownloadProblem.NotABundle, name)
        }
        for (name in listOf("../evil", "a/b", "", ".x", "x.partial")) {
            assertEquals(DownloadProblem.BadName(name), problem("https://example.org/b", name))
        }
        assertEquals(emptyList(), filesOf(folder.parent).filter { it.fileName.toString() == "evil" })
    }

    @Test
    fun `addresses without TLS are for this machine only`() {
        for (address in listOf("http://example.org/b", "ftp://example.org/b", "file:///b", "b", "https://", "https://a/b?c", "")) {
            assertEquals(DownloadProblem.BadAddress(address), problem(address))
        }
        assertEquals("https://example.org/b", bundleAddress(" https://example.org/b/ ").toString())
        assertEquals("http://10.0.2.2:8000/b", bundleAddress("http://10.0.2.2:8000/b").toString())
    }

    @Test
    fun `space is asked for before`() {
        val server = serve()
        val problem = problem(server.address, free = 1000) as DownloadProblem.NoSpace
        assertEquals(1000, problem.free)
        assertTrue(problem.needed > 300_000)
        assertTrue(server.requestsOf("target.tflite").isEmpty())
    }

    @Test
    fun `a bundle that is there is not touched`() {
        Files.createDirectories(folder.resolve("small"))
        assertEquals(DownloadProblem.Exists("small"), problem("https://example.org/b"))
    }

    @Test
    fun `a folder that cannot be written is said`() {
        folder.resolve("small.partial").writeBytes(ByteArray(1))
        assertTrue(problem(serve().address) is DownloadProblem.Storage)
    }

    @Test
    fun `cancelling ends a download, and keeps what came`() {
        val server = serve(firstTargets(1) { Answer(200, mapOf("ETag" to "\"1\""), target, sent = 1000, stallMs = 60_000) })
        val cancellation = Cancellation()
        val patient = BundleDownload(folder, transfer = Transfer(limits.copy(readTimeoutMs = 2000, firstPauseMs = 60_000))) { Long.MAX_VALUE }
        val canceller = thread {
            val part = folder.resolve("small.partial/target.tflite")
            await("the first bytes") { part.exists() && Files.size(part) == 1000L }
            cancellation.cancel()
        }
        assertFailsWith<CancelledException> { patient.run(server.address, "small", cancellation) {} }
        assertEquals(1, server.requestsOf("target.tflite").size)
        canceller.join()
        download(server.address)
        assertComplete()
        assertEquals("bytes=1000-", server.requestsOf("target.tflite")[1].range)
    }
}
