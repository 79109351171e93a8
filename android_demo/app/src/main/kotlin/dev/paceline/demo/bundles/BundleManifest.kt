package dev.paceline.demo.bundles

/** @property sha256 in small letters. */
data class BundleFile(val name: String, val bytes: Long, val sha256: String)

/** The files of a bundle that the core reads: not those of other runtimes, which may be as large again. */
data class BundleManifest(val files: List<BundleFile>) {
    val bytes get() = files.sumOf { it.bytes }

    companion object {
        /** With the graphs for the NPU of chip `soc`, where there are some. Throws [DownloadException]; the core checks the rest. */
        fun parse(json: String, soc: String): BundleManifest {
            val manifest = try {
                parseJson(json) as? Map<*, *>
            } catch (error: JsonException) {
                refuse(error.message.orEmpty())
            }
            if (manifest?.get("format") != "paceline-bundle") refuse("\"format\" is not \"paceline-bundle\"")
            val files = manifest["files"] as? Map<*, *> ?: refuse("\"files\" is missing")
            val graphs = manifest["graphs"] as? Map<*, *>
            val parts = partsOf(graphs, "litert") ?: refuse("it has no TFLite graphs")
            val npu = partsOf(graphs, "npu.$soc")?.let { listOf(NPU_PROFILE) + it.values }.orEmpty()
            val names = listOf(TOKENIZER) + listOf(SAMPLING).filter { it in files } + parts.values + npu
            val needed = names.distinct().map { file(it as? String ?: refuse("a part has no file name"), files) }
            return BundleManifest(needed).also { if (it.bytes > MOST_BYTES) throw DownloadException(DownloadProblem.TooLarge(it.bytes)) }
        }

        private fun partsOf(graphs: Map<*, *>?, kind: String) = (graphs?.get(kind) as? Map<*, *>)?.get("parts") as? Map<*, *>

        private fun file(name: String, files: Map<*, *>): BundleFile {
            if (!isPlainName(name) || name == MANIFEST) refuse("\"$name\" is not a plain file name")
            val stored = files[name] as? Map<*, *> ?: refuse("$name is missing")
            val bytes = stored["bytes"] as? Double ?: refuse("the size of $name is missing")
            val sha256 = (stored["sha256"] as? String)?.lowercase() ?: refuse("the hash of $name is missing")
            if (bytes < 0 || bytes % 1 != 0.0) refuse("the size of $name is $bytes")
            if (!SHA256.matches(sha256)) refuse("the hash of $name is no SHA-256")
            return BundleFile(name, bytes.toLong(), sha256)
        }

        private fun refuse(reason: String): Nothing = throw DownloadException(DownloadProblem.NotABundle(reason))

        private const val TOKENIZER = "tokenizer.bin"
        private const val NPU_PROFILE = "npu.json"
        private const val SAMPLING = "generation_config.json"

        /** E4B in float32 has 30 GB; what no phone holds need not be begun. */
        private const val MOST_BYTES = 32_000_000_000L
        private val SHA256 = Regex("[0-9a-f]{64}")
    }
}
