package dev.paceline.demo.bundles

import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class BundleManifestTest {
    private val hash = "ab".repeat(32)

    private fun manifest(files: String, parts: String = "\"target\": \"t\"", format: String = "paceline-bundle") =
        """{"format": "$format", "files": {$files}, "graphs": {"litert": {"parts": {$parts}}}}"""

    private fun file(name: String, bytes: String = "3", sha256: String = hash) = "\"$name\": {\"bytes\": $bytes, \"sha256\": \"$sha256\"}"

    private fun reason(json: String) = assertFailsWith<DownloadException>(json) { BundleManifest.parse(json, "") }.problem

    @Test
    fun `the files that the core reads, each once`() {
        val files = listOf("t", "tokenizer.bin", "generation_config.json", "target.onnx").joinToString { file(it) }
        val parsed = BundleManifest.parse(manifest(files, "\"target\": \"t\", \"embedder\": \"t\""), "")
        assertEquals(listOf("tokenizer.bin", "generation_config.json", "t").map { BundleFile(it, 3, hash) }, parsed.files)
        assertEquals(9, parsed.bytes)
    }

    @Test
    fun `the graphs for the NPU of this phone, if there are some`() {
        val files = listOf("t", "tokenizer.bin", "npu.json", "n").joinToString { file(it) }
        val npu = """"npu.SM8750": {"parts": {"target": "n"}}"""
        val json = """{"format": "paceline-bundle", "files": {$files}, "graphs": {"litert": {"parts": {"target": "t"}}, $npu}}"""
        fun names(soc: String) = BundleManifest.parse(json, soc).files.map { it.name }
        assertEquals(listOf("tokenizer.bin", "t", "npu.json", "n"), names("SM8750"))
        assertEquals(listOf("tokenizer.bin", "t"), names("SM8650"))
    }

    @Test
    fun `what is no bundle says why`() {
        val whole = file("t") + ", " + file("tokenizer.bin")
        val bad = listOf(
            "", "[]", "{", "<html>", manifest(whole, format = "zip"), manifest(file("t")), manifest(whole, "\"target\": 3"),
            manifest(whole, "\"target\": \"u\""), manifest(file("t", "-1") + "," + file("tokenizer.bin")),
            manifest(file("t", "1.5") + "," + file("tokenizer.bin")), manifest(file("t", "\"3\"") + "," + file("tokenizer.bin")),
            manifest(file("t", sha256 = "xy") + "," + file("tokenizer.bin")), """{"format": "paceline-bundle", "files": {}}""",
        )
        for (json in bad) assertTrue(reason(json) is DownloadProblem.NotABundle, json)
    }

    @Test
    fun `sizes that no phone holds are refused`() {
        assertTrue(reason(manifest(file("t", "1e15") + "," + file("tokenizer.bin"))) is DownloadProblem.TooLarge)
    }
}
