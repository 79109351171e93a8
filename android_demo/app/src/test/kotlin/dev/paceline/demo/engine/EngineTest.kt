package dev.paceline.demo.engine

import dev.paceline.core.PacelineException
import dev.paceline.core.Turn
import dev.paceline.demo.settings.LoadSettings
import dev.paceline.demo.settings.Settings
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.Semaphore
import kotlin.test.AfterTest
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFalse
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking

class EngineTest {
    private val worker = Executors.newSingleThreadExecutor()
    private val source = ModelSource.Folder("small", "/small")
    private var settings = Settings()
    private val loads = mutableListOf<LoadSettings>()
    private var opened: () -> LoadedModel = { ScriptedModel() }
    private val engine = Engine(
        { _, load, progress ->
            loads += load
            progress.report("loading", 0.5)
            opened()
        },
        settings = { settings },
        keepDraftLength = { settings = settings.copy(draftLength = it) },
        worker = worker.asCoroutineDispatcher(),
    )

    @AfterTest
    fun end() {
        worker.shutdownNow()
    }

    private val state get() = engine.state.value
    private val answer get() = state.messages.last()

    private fun load(model: ScriptedModel): ScriptedModel {
        opened = { model }
        engine.select(source)
        await("the model") { state.model is ModelState.Ready }
        return model
    }

    private fun ask(text: String) {
        assertTrue(engine.send(text))
        await("the end of the answer") { state.isIdle }
    }

    @Test
    fun `an answer grows token by token, with thoughts apart`() {
        val each = Semaphore(0)
        load(ScriptedModel(words = listOf("Hm.", "Good", " day."), thoughts = 1) { each.acquire() })
        engine.send("Hello")
        assertEquals(listOf(Author.USER, Author.MODEL), state.messages.map { it.author })
        each.release(2)
        await("two tokens") { answer.text == "Good" }
        assertNull(answer.ending)
        each.release()
        await("the end") { state.isIdle }
        assertEquals(Message(2, Author.MODEL, "Good day.", "Hm.", Ending.COMPLETE), answer)
    }

    @Test
    fun `a new observer sees the same state in the middle of an answer`() {
        val each = Semaphore(1)
        load(ScriptedModel { each.acquire() })
        engine.send("Hello")
        await("a token") { answer.text == "Good" }
        assertEquals("Good", runBlocking { engine.state.first() }.messages.last().text)
        each.release(2)
        await("the end") { state.isIdle }
        assertEquals("Good day.", runBlocking { engine.state.first() }.messages.last().text)
    }

    @Test
    fun `a stop during loading ends the answer before the model is asked`() {
        val loading = CountDownLatch(1)
        val model = ScriptedModel()
        opened = { model.also { loading.await() } }
        engine.select(source)
        engine.send("Hello")
        engine.stop()
        loading.countDown()
        await("the end") { state.isIdle && state.model is ModelState.Ready }
        assertEquals(Ending.STOPPED, answer.ending)
        assertTrue(model.chats.isEmpty())
    }

    @Test
    fun `a stop in the middle keeps what is written, and closes the text`() {
        val each = Semaphore(2)
        val model = load(ScriptedModel(words = List(1000) { "a" }) { each.acquire() })
        engine.send("Hello")
        await("two tokens") { answer.text == "aa" }
        engine.stop()
        each.release()
        await("the end") { state.isIdle }
        assertEquals("aaa" to Ending.STOPPED, answer.text to answer.ending)
        assertEquals(1, model.closedStreams.get())
    }

    @Test
    fun `an error is a sentence, and the next message works`() {
        var fails = true
        load(ScriptedModel { if (fails) throw PacelineException("The cache is full; begin anew.") })
        ask("Hello")
        assertEquals(Problem.Core("The cache is full; begin anew."), state.problem)
        assertEquals(Ending.FAILED, answer.ending)
        fails = false
        ask("Again")
        assertNull(state.problem)
        assertEquals(Ending.COMPLETE, answer.ending)
    }

    @Test
    fun `a model that does not load is a sentence, and is tried again`() {
        opened = { throw PacelineException("It is no bundle.") }
        engine.select(source)
        await("the problem") { state.problem != null }
        assertEquals(ModelState.Absent(source, freed = false), state.model)
        opened = { ScriptedModel() }
        ask("Hello")
        assertEquals("Good day.", answer.text)
    }

    @Test
    fun `without a model there is a problem and no answer`() {
        ask("Hello")
        assertEquals(Problem.NoModel, state.problem)
    }

    @Test
    fun `low memory frees the model, and the next message loads it again and says so`() {
        val model = load(ScriptedModel())
        ask("Hello")
        engine.free()
        await("freeing") { state.model == ModelState.Absent(source, freed = true) }
        assertTrue(model.isClosed)
        val loading = CountDownLatch(1)
        opened = { ScriptedModel().also { loading.await() } }
        engine.send("Again")
        await("loading") { (state.model as? ModelState.Loading)?.stage == "loading" }
        assertTrue((state.model as ModelState.Loading).again)
        loading.countDown()
        await("the end") { state.isIdle }
        assertEquals(4, state.messages.size)
        assertEquals("Good day.", answer.text)
    }

    @Test
    fun `low memory waits for the answer that is being written`() {
        val each = Semaphore(1)
        val model = load(ScriptedModel { each.acquire() })
        engine.send("Hello")
        await("a token") { answer.text == "Good" }
        engine.free()
        assertFalse(model.isClosed)
        each.release(2)
        await("freeing") { model.isClosed }
        assertEquals("Good day.", answer.text)
    }

    @Test
    fun `freeing without a model does nothing`() {
        engine.free()
        engine.select(source)
        await("the model") { state.model is ModelState.Ready }
    }

    @Test
    fun `a setting of loading loads anew, one model at a time`() {
        val first = load(ScriptedModel())
        ask("Hello")
        assertEquals(1, loads.size)
        settings = Settings(load = LoadSettings(threads = 3))
        opened = { ScriptedModel().also { assertTrue(first.isClosed) } }
        ask("Again")
        assertEquals(listOf(LoadSettings(), LoadSettings(threads = 3)), loads)
        assertNull(state.problem)
    }

    @Test
    fun `choosing the model that is there loads nothing`() {
        load(ScriptedModel())
        engine.select(source)
        await("the model") { state.model is ModelState.Ready }
        assertEquals(1, loads.size)
    }

    @Test
    fun `another model stops the answer and takes over the conversation`() {
        val each = Semaphore(1)
        load(ScriptedModel(words = List(1000) { "a" }) { each.acquire() })
        engine.send("Hello")
        await("a token") { answer.text == "a" }
        val other = ModelSource.Tree("other", "content://other")
        opened = { ScriptedModel() }
        engine.select(other)
        each.release()
        await("the other model") { state.isIdle && (state.model as? ModelState.Ready)?.source == other }
        assertEquals(Ending.STOPPED, answer.ending)
        assertEquals(2, loads.size)
    }

    @Test
    fun `a new chat is empty, also where the old answer still runs`() {
        val each = Semaphore(1)
        load(ScriptedModel(words = List(1000) { "a" }) { each.acquire() })
        engine.send("Hello")
        await("a token") { answer.text == "a" }
        engine.newChat()
        assertFalse(engine.send("too early"))
        each.release(10)
        await("the end") { state.isIdle }
        assertEquals(emptyList(), state.messages)
        assertNull(state.stats)
    }

    @Test
    fun `the conversation is passed on, without questions that got no answer`() {
        val each = Semaphore(0)
        val model = load(ScriptedModel(words = listOf("Yes.")) { each.acquire() })
        engine.send("one")
        await("the question") { model.chats.size == 1 }
        engine.stop()
        engine.newChat()
        each.release(10)
        await("the end") { state.isIdle }
        ask("two")
        ask("three")
        assertEquals(listOf(Turn(false, "two"), Turn(true, "Yes."), Turn(false, "three")), model.chats.last())
        assertEquals(0.5f, model.asked.last().sampling.temperature)
    }

    @Test
    fun `a bundle that cannot chat continues the whole text`() {
        val model = load(ScriptedModel(canChat = false))
        ask("One ")
        ask(" Two ")
        assertEquals(listOf("One ", "One Good day. Two "), model.texts)
    }

    @Test
    fun `a comparison keeps the faster way`() {
        val model = load(ScriptedModel(words = List(50) { "a" }, speed = { if (it == 0) 10.0 else 15.0 }))
        settings = Settings(draftLength = 0)
        assertTrue(engine.compare("Tell me."))
        await("the comparison") { state.isIdle }
        assertEquals(Verdict.DRAFTED, state.comparison?.verdict)
        assertEquals(-1, settings.draftLength)
        assertEquals(COMPARED_TURNS, model.asked.size)
        assertEquals(setOf(1L), model.asked.map { it.seed }.toSet())
        assertEquals(listOf(0, -1, -1, 0, 0, -1, -1, 0), model.asked.map { it.draftLength })
        assertEquals(emptyList(), state.messages)
    }

    @Test
    fun `a comparison that is stopped decides nothing`() {
        val each = Semaphore(40)
        load(ScriptedModel(words = List(50) { "a" }) { each.acquire() })
        engine.compare("Tell me.")
        await("the second turn") { (state.work as? Work.Comparing)?.done == 1 }
        engine.stop()
        each.release(1000)
        await("the end") { state.isIdle }
        assertNull(state.comparison)
        assertEquals(Settings(), settings)
    }

    @Test
    fun `other tokens with drafts are a fault, and nothing is kept`() {
        load(ScriptedModel(words = List(50) { "a" }, speed = { if (it == 0) 10.0 else 99.0 }, token = { at, drafts -> at + drafts }))
        engine.compare("Tell me.")
        await("the comparison") { state.comparison != null }
        assertEquals(Verdict.OTHER_TOKENS, state.comparison?.verdict)
        assertEquals(Settings(), settings)
    }
}
