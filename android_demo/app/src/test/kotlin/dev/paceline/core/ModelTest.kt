package dev.paceline.core

import dev.paceline.demo.device.rssAnonBytes
import dev.paceline.demo.engine.Author
import dev.paceline.demo.engine.CoreModel
import dev.paceline.demo.engine.Ending
import dev.paceline.demo.engine.Engine
import dev.paceline.demo.engine.ModelOpener
import dev.paceline.demo.engine.ModelSource
import dev.paceline.demo.engine.Verdict
import dev.paceline.demo.engine.await
import dev.paceline.demo.engine.isIdle
import dev.paceline.demo.engine.loadCore
import dev.paceline.demo.settings.Settings
import java.io.File
import java.nio.file.Files
import java.util.concurrent.Executors
import kotlin.concurrent.thread
import kotlin.test.AfterTest
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.asCoroutineDispatcher
import org.junit.Assume.assumeTrue
import org.junit.BeforeClass

/**
 * The core through JNI on a desktop JVM, with a real bundle: the system properties paceline.bundle, paceline.jni (libpaceline.so) and
 * paceline.litert (libLiteRt.so) say where they are.
 */
class ModelTest {
    private val cache = Files.createTempDirectory("cache")
    private val options = LoadOptions(library = litert, cacheDir = cache.toString(), threads = 1, context = 512)
    private val opened = mutableListOf<Model>()
    private val prompt = "import os\nimport sys\n\nclass Config" // goes on for longer than any test asks

    @AfterTest
    fun end() {
        opened.forEach { it.close() }
        cache.toFile().deleteRecursively()
    }

    private fun open(options: LoadOptions = this.options) = Model.open(bundle!!, options) { _, _ -> }.also { opened += it }

    private fun Generation.readAll(): List<Piece> = use { generateSequence { it.next() }.toList() }

    private fun List<Piece>.text() = joinToString("") { it.text }

    private fun settings(draftLength: Int, tokens: Int = 48, sampling: Sampling = Sampling(), seed: Long? = null) =
        GenerateSettings(draftLength, tokens, sampling, seed)

    @Test
    fun `drafts change no text`() {
        val model = open()
        for (sampling in listOf(Sampling(), Sampling(temperature = 0.8f, topK = 40, topP = 0.95))) {
            val plain = model.generate(prompt, settings(0, sampling = sampling, seed = 7)).readAll()
            for (draftLength in listOf(1, 3, 7, GenerateSettings.AUTO)) {
                val drafted = model.generate(prompt, settings(draftLength, sampling = sampling, seed = 7)).readAll()
                assertEquals(plain.map { it.token }, drafted.map { it.token }, "draft length $draftLength, $sampling")
                assertEquals(plain.text(), drafted.text())
            }
        }
    }

    @Test
    fun `drafts are accepted, and counted`() {
        val generation = open().generate(prompt, settings(3))
        val pieces = generateSequence { generation.next() }.toList()
        val stats = generation.stats
        generation.close()
        assertEquals(pieces.size, stats.emitted)
        assertEquals(pieces.count { it.fromDraft }, stats.accepted)
        assertTrue(stats.accepted in 1..stats.drafted)
        assertEquals(stats.acceptedAt.sum(), stats.accepted)
        assertEquals(stats.draftedAt.sum(), stats.drafted)
        assertTrue(stats.verifyMs > 0 && stats.draftMs > 0 && stats.prefillMs > 0)
        assertEquals(Finish.LENGTH, pieces.last().finish)
    }

    @Test
    fun `a generation that is cancelled at once has no text`() {
        val generation = open().generate(prompt, settings(3))
        generation.cancel()
        val pieces = generation.readAll()
        assertEquals(Finish.CANCELLED, pieces.last().finish)
        assertTrue(pieces.size <= 1)
        assertNull(generation.next())
    }

    @Test
    fun `cancelling from another thread ends a text in the middle, and the model goes on`() {
        val model = open()
        val whole = model.generate(prompt, settings(3)).readAll()
        val generation = model.generate(prompt, settings(3, tokens = 0))
        generation.next()
        thread { generation.cancel() }.join()
        val rest = generation.readAll()
        assertEquals(Finish.CANCELLED, rest.last().finish)
        assertEquals(whole.text(), model.generate(prompt, settings(3)).readAll().text())
    }

    @Test
    fun `a new generation ends the one before`() {
        val model = open()
        val first = model.generate(prompt, settings(3, tokens = 0))
        first.next()
        val second = model.generate(prompt, settings(3)).readAll()
        assertNull(first.next())
        assertEquals(48, second.size)
    }

    @Test
    fun `closing while another thread generates ends it without an error`() {
        val model = open()
        val generation = model.generate(prompt, settings(3, tokens = 0))
        var read = 0
        var failure: Throwable? = null
        val reader = thread {
            try {
                while (generation.next() != null) read++
            } catch (error: Throwable) {
                failure = error
            }
        }
        await("some tokens") { read > 3 }
        model.close()
        reader.join(10_000)
        assertNull(failure)
        model.close()
        generation.close()
        assertEquals("the model is closed; load it again.", assertFailsWith<PacelineException> { model.generate("x", settings(0)) }.message)
    }

    @Test
    fun `a later turn of a conversation computes only its own tokens`() {
        val model = open()
        val turns = mutableListOf(Turn(false, "Return the number of items in the queue."))
        turns += Turn(true, model.chat(turns, settings(3)).readAll().text())
        turns += Turn(false, "Open the file and return its first line.")
        val generation = model.chat(turns, settings(3))
        generation.next()
        val stats = generation.stats
        generation.close()
        assertTrue(stats.keptTokens > 0 && stats.keptTokens < stats.promptTokens, "kept ${stats.keptTokens} of ${stats.promptTokens}")
    }

    @Test
    fun `a later text keeps the rows of its beginning`() {
        val model = open()
        val text = prompt + model.generate(prompt, settings(3)).readAll().text()
        val generation = model.generate("$text and", settings(3))
        generation.next()
        assertTrue(generation.stats.keptTokens > 4)
        generation.close()
    }

    @Test
    fun `text of any script passes through`() {
        val model = open()
        for (text in listOf("Grüße, “Ærø”", "你好，世界", "שלום", "a\u0000b", "🚴🏽‍♀️", "\t\r\n  ")) {
            val pieces = model.generate(text, settings(3, tokens = 8)).readAll()
            assertTrue(pieces.isNotEmpty(), text)
            assertTrue(pieces.text().none { it == '\uFFFD' } || pieces.last().finish == Finish.LENGTH, text)
        }
    }

    @Test
    fun `a stop text ends the output in front of it`() {
        val model = open()
        val text = model.generate(prompt, settings(3)).readAll().text()
        val stop = text.substring(text.length / 2, text.length / 2 + 3)
        val pieces = model.generate(prompt, settings(3).copy(stops = listOf(stop))).readAll()
        assertEquals(text.substringBefore(stop), pieces.text())
        assertEquals(Finish.STOP, pieces.last().finish)
    }

    @Test
    fun `what cannot be loaded says why`() {
        fun message(open: () -> Model) = assertNotNull(assertFailsWith<PacelineException> { open() }.message)
        assertTrue("/nowhere" in message { Model.open("/nowhere", options) { _, _ -> } })
        assertTrue("libNone.so" in message { open(options.copy(library = "/nowhere/libNone.so")) })
        assertTrue(message { open(options.copy(memoryBudget = 1)) }.isNotEmpty())
        assertTrue("manifest.json" in message { Model.open(emptyMap(), options) { _, _ -> } })
        assertTrue(message { open(options.copy(context = 100_000_000)) }.isNotEmpty())
    }

    @Test
    fun `backends that are not there say why`() {
        assertNull(Model.reasonAgainst(Backend.CPU, litert, null))
        val reason = Model.reasonAgainst(Backend.GPU, litert, null)
        val onGpu = options.copy(target = Backend.GPU, drafter = Backend.GPU)
        if (reason != null) assertEquals(reason, assertFailsWith<PacelineException> { open(onGpu) }.message)
        assertNotNull(Model.reasonAgainst(Backend.NPU, litert, cache.toString()))
        Files.createFile(cache.resolve("libLiteRtDispatch_Any.so"))
        assertNull(Model.reasonAgainst(Backend.NPU, litert, cache.toString()))
    }

    @Test
    fun `what an NPU cannot run is refused, or runs on the CPU and says so`() {
        val onNpu = options.copy(target = Backend.NPU, npuLibraries = cache.toString())
        val reason = assertNotNull(assertFailsWith<PacelineException> { open(onNpu) }.message)
        val model = open(onNpu.copy(allowFallback = true))
        assertEquals("The target runs on the CPU: $reason", model.info.fallback)
        val plain = open()
        assertEquals("", plain.info.fallback)
        assertEquals(plain.generate(prompt, settings(3)).readAll().text(), model.generate(prompt, settings(3)).readAll().text())
    }

    @Test
    fun `descriptors serve as well as a directory`() {
        val expected = open().generate(prompt, settings(3)).readAll().text()
        val files = File(bundle!!).listFiles()!!.filter { it.isFile }
        val streams = files.map { it.inputStream() }
        val model = Model.open(files.associate { it.name to descriptorOf(it) }, options) { _, _ -> }.also { opened += it }
        streams.forEach { it.close() }
        assertEquals(expected, model.generate(prompt, settings(3)).readAll().text())
    }

    /** The number of an open file's descriptor, which Linux knows and Java does not say. */
    private fun descriptorOf(file: File): Int =
        File("/proc/self/fd").listFiles()!!.first { it.canonicalPath == file.canonicalPath }.name.toInt()

    @Test
    fun `loading tells how far it is, and an exception of the listener ends it`() {
        val stages = mutableListOf<Pair<String, Double>>()
        Model.open(bundle!!, options) { stage, fraction -> stages += stage to fraction }.close()
        assertEquals("loading" to 1.0, stages.last())
        assertTrue(stages.all { it.second in 0.0..1.0 })
        assertFailsWith<IllegalStateException> { Model.open(bundle, options) { _, _ -> error("enough") } }
    }

    @Test
    fun `fifty generations leave no memory behind`() {
        val model = open()
        val turns = listOf(Turn(false, "Return the number of items in the queue."))
        fun run(times: Int) = repeat(times) {
            model.chat(turns, settings(3, tokens = 16)).readAll()
        }
        run(10)
        val before = anonymous()
        run(50)
        val grown = anonymous() - before
        assertTrue(grown < 8 shl 20, "$grown bytes")
    }

    private fun anonymous(): Long {
        System.gc()
        return assertNotNull(rssAnonBytes(File("/proc/self/status").readText()))
    }

    @Test
    fun `the app's engine answers, stops, compares and frees`() {
        val worker = Executors.newSingleThreadExecutor()
        val source = ModelSource.Folder("small", bundle!!)
        val opener = ModelOpener { _, _, progress -> CoreModel(Model.open(bundle, options, progress)) }
        val engine = Engine(opener, settings = { Settings() }, keepDraftLength = {}, worker = worker.asCoroutineDispatcher())
        engine.select(source)
        engine.send(prompt)
        await("some text") { engine.state.value.messages.last().run { author == Author.MODEL && text.length > 10 } }
        engine.stop()
        await("the end") { engine.state.value.isIdle }
        assertEquals(Ending.STOPPED, engine.state.value.messages.last().ending)
        engine.compare(prompt)
        await("the comparison") { engine.state.value.isIdle }
        val comparison = assertNotNull(engine.state.value.comparison, engine.state.value.problem.toString())
        assertTrue(comparison.sameTokens && comparison.verdict != Verdict.OTHER_TOKENS)
        engine.free()
        engine.newChat()
        engine.send(prompt)
        await("the end") { engine.state.value.isIdle }
        assertNull(engine.state.value.problem)
        engine.free()
        worker.shutdown()
    }

    companion object {
        private val bundle: String? = System.getProperty("paceline.bundle")
        private val jni: String? = System.getProperty("paceline.jni")
        private val litert: String? = System.getProperty("paceline.litert")

        @BeforeClass
        @JvmStatic
        fun loadLibrary() {
            val isGiven = bundle != null && jni != null && litert != null
            if (!isGiven) println("ModelTest is skipped: paceline.bundle, paceline.jni and paceline.litert do not say where things are.")
            assumeTrue(isGiven)
            loadCore(jni)
        }
    }
}
