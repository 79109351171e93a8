package dev.paceline.demo.bundles

import dev.paceline.demo.engine.await
import java.nio.file.Files
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFalse
import kotlin.test.assertTrue
import kotlinx.coroutines.Dispatchers

class DownloadsTest {
    private val folder = Files.createTempDirectory("models")

    @Test
    fun `one download at a time, which can be cancelled`() {
        val server = LocalServer(emptyMap()) { Answer(200, emptyMap(), ByteArray(10), sent = 1, stallMs = 2000) }
        val downloads = Downloads(BundleDownload(folder), Dispatchers.IO)
        assertTrue(downloads.start(server.address, "small"))
        assertFalse(downloads.start(server.address, "other"))
        await("the request") { server.requests.isNotEmpty() }
        downloads.cancel()
        assertTrue(downloads.state.value.let { it !is DownloadState.Running || it.cancelling })
        await("the end") { downloads.state.value == DownloadState.None }
        server.close()
    }

    @Test
    fun `a problem stays until it is dismissed`() {
        val downloads = Downloads(BundleDownload(folder), Dispatchers.IO)
        downloads.start("http://example.org", "small")
        await("the problem") { downloads.state.value is DownloadState.Failed }
        assertEquals(DownloadState.Failed("small", DownloadProblem.BadAddress("http://example.org")), downloads.state.value)
        downloads.dismiss()
        assertEquals(DownloadState.None, downloads.state.value)
    }
}
