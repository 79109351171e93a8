package dev.paceline.demo.bundles

import java.nio.file.Files
import kotlin.io.path.writeText
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

class BundleFolderTest {
    @Test
    fun `bundles and downloads that can go on are listed, other things are not`() {
        val folder = Files.createTempDirectory("models")
        fun made(name: String, file: String, text: String) = Files.createDirectories(folder.resolve(name)).resolve(file).writeText(text)
        made("b", MANIFEST, "{}")
        made("a.partial", BundleDownload.ADDRESS_NOTE, "https://example.org/a")
        made("c", "notes.txt", "x")
        made("d.partial", MANIFEST, "{}")
        folder.resolve("file").writeText("x")
        val found = listBundles(folder)
        assertEquals(listOf("a", "b"), found.map { it.name })
        assertEquals(listOf("https://example.org/a", null), found.map { it.address })
        assertEquals(2, found[1].bytes)
        assertTrue(deleteBundle(found[0]))
        assertEquals(listOf("b"), listBundles(folder).map { it.name })
        assertEquals(emptyList(), listBundles(folder.resolve("nowhere")))
        folder.toFile().deleteRecursively()
    }
}
