package dev.paceline.demo.ui

import android.app.Activity
import android.view.View
import android.widget.EditText
import android.widget.ImageButton
import android.widget.ListView
import android.widget.ProgressBar
import android.widget.TextView
import dev.paceline.demo.R
import dev.paceline.demo.StartNotice
import dev.paceline.demo.device.Readings
import dev.paceline.demo.engine.Author
import dev.paceline.demo.engine.EngineState
import dev.paceline.demo.engine.ModelState
import dev.paceline.demo.engine.Work
import dev.paceline.demo.engine.isIdle

/** The main screen's views, and what of the state each of them shows. */
class MainViews(
    private val activity: Activity,
    private val onSend: (String) -> Boolean,
    private val onStop: () -> Unit,
    onModels: () -> Unit,
    onCopy: (String) -> Unit,
    onDismissNotice: () -> Unit,
    onDismissComparison: () -> Unit,
) {
    val messages = MessageAdapter(activity, onCopy)
    private val texts = Texts(activity)
    private val spokenText = SpokenText()
    private var state = EngineState()
    private var readings: Readings? = null

    private val modelText = text(R.id.model)
    private val live = text(R.id.live)
    private val loading = activity.findViewById<ProgressBar>(R.id.loading)
    private val notice = activity.findViewById<View>(R.id.notice)
    private val noticeText = text(R.id.notice_text)
    private val comparison = activity.findViewById<View>(R.id.comparison)
    private val comparisonText = text(R.id.comparison_text)
    private val comparisonClose = activity.findViewById<View>(R.id.comparison_close)
    private val empty = activity.findViewById<View>(R.id.empty)
    private val emptyText = text(R.id.empty_text)
    private val choose = activity.findViewById<View>(R.id.choose)
    private val spoken = text(R.id.spoken)
    private val prompt = activity.findViewById<EditText>(R.id.prompt)
    private val send = activity.findViewById<ImageButton>(R.id.send)

    init {
        activity.findViewById<View>(R.id.root).padForSystemBars()
        activity.findViewById<ListView>(R.id.messages).apply {
            adapter = messages
            emptyView = empty
        }
        choose.setOnClickListener { onModels() }
        activity.findViewById<View>(R.id.notice_close).setOnClickListener { onDismissNotice() }
        comparisonClose.setOnClickListener { onDismissComparison() }
        send.setOnClickListener { if (state.isIdle) sendPrompt() else onStop() }
    }

    fun show(state: EngineState, startNotice: StartNotice) {
        this.state = state
        activity.title = state.model.source?.name ?: activity.getString(R.string.app_name)
        modelText.show(texts.of(state.model))
        showLoading(state.model)
        showNotice(listOfNotNull(texts.of(startNotice).ifEmpty { null }, state.problem?.let(texts::of)).joinToString("\n"))
        showComparison(state)
        showEmpty(state.model)
        messages.show(state.messages)
        showSend(state)
        showLive()
        speak(state)
    }

    fun show(readings: Readings) {
        this.readings = readings
        showLive()
    }

    private fun sendPrompt() {
        val text = prompt.text.toString()
        if (text.isNotBlank() && onSend(text)) prompt.text.clear()
    }

    private fun showLive() = live.show(texts.live(state.stats, readings))

    private fun showLoading(model: ModelState) {
        loading.isVisible = model is ModelState.Loading
        if (model is ModelState.Loading) loading.progress = (model.fraction * loading.max).toInt()
    }

    private fun showNotice(text: String) {
        notice.isVisible = text.isNotEmpty()
        noticeText.show(text)
    }

    private fun showComparison(state: EngineState) {
        val work = state.work
        val text = when {
            work is Work.Comparing -> activity.getString(R.string.comparing, work.done, work.of)
            else -> state.comparison?.let(texts::of).orEmpty()
        }
        comparison.isVisible = text.isNotEmpty()
        comparisonClose.isVisible = work !is Work.Comparing
        comparisonText.show(text)
    }

    private fun showEmpty(model: ModelState) {
        choose.isVisible = model.source == null
        val isPlain = model is ModelState.Ready && !model.info.canChat
        val text = when {
            model.source == null -> R.string.empty_no_model
            isPlain -> R.string.empty_text
            else -> R.string.empty_chat
        }
        emptyText.show(activity.getString(text))
        val hint = activity.getString(if (isPlain) R.string.prompt_text else R.string.prompt_chat)
        if (prompt.hint != hint) prompt.hint = hint
    }

    private fun showSend(state: EngineState) {
        send.isEnabled = state.model.source != null
        val description = activity.getString(if (state.isIdle) R.string.send else R.string.stop)
        if (send.contentDescription == description) return
        send.contentDescription = description
        send.setImageResource(if (state.isIdle) R.drawable.ic_send else R.drawable.ic_stop)
    }

    private fun speak(state: EngineState) {
        val answer = state.messages.lastOrNull()?.takeIf { it.author == Author.MODEL } ?: return
        spokenText.next(answer.text, answer.ending != null)?.let { spoken.text = it }
    }

    private fun text(id: Int) = activity.findViewById<TextView>(id)
}

var View.isVisible: Boolean
    get() = visibility == View.VISIBLE
    set(value) {
        visibility = if (value) View.VISIBLE else View.GONE
    }

/** Sets a text only where it is another one: a live region speaks at every change. */
fun TextView.show(next: String) {
    if (text.toString() != next) text = next
}
