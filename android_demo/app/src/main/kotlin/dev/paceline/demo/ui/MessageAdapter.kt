package dev.paceline.demo.ui

import android.content.Context
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.TextView
import dev.paceline.demo.R
import dev.paceline.demo.engine.Author
import dev.paceline.demo.engine.Message

/** The messages of a conversation, one row each. */
class MessageAdapter(private val context: Context, private val onCopy: (String) -> Unit) : BaseAdapter() {
    /** The ids of answers whose thoughts are shown. */
    val openThoughts = mutableSetOf<Int>()
    private val texts = Texts(context)
    private var messages = emptyList<Message>()

    fun show(next: List<Message>) {
        if (next == messages) return
        messages = next
        openThoughts.retainAll(next.map { it.id }.toSet())
        notifyDataSetChanged()
    }

    override fun getCount() = messages.size

    override fun getItem(position: Int) = messages[position]

    override fun getItemId(position: Int) = messages[position].id.toLong()

    override fun hasStableIds() = true

    override fun isEnabled(position: Int) = false // rows do nothing themselves, their buttons do

    override fun getView(position: Int, convertView: View?, parent: ViewGroup): View {
        val row = convertView ?: LayoutInflater.from(context).inflate(R.layout.message, parent, false).also { it.tag = Row(it) }
        (row.tag as Row).show(messages[position])
        return row
    }

    private inner class Row(view: View) {
        private val bubble = view.findViewById<View>(R.id.bubble)
        private val author = view.findViewById<TextView>(R.id.author)
        private val thoughtsToggle = view.findViewById<TextView>(R.id.thoughts_toggle)
        private val thoughts = view.findViewById<TextView>(R.id.thoughts)
        private val text = view.findViewById<TextView>(R.id.text)
        private val ending = view.findViewById<TextView>(R.id.ending)
        private val copy = view.findViewById<View>(R.id.copy)

        fun show(message: Message) {
            val isUser = message.author == Author.USER
            bubble.setBackgroundResource(if (isUser) R.drawable.bubble_user else R.drawable.bubble_model)
            author.setText(if (isUser) R.string.author_user else R.string.author_model)
            showThoughts(message)
            val isWaiting = !isUser && message.ending == null && message.text.isEmpty()
            text.text = if (isWaiting) context.getString(R.string.waiting) else message.text
            val ended = message.ending?.let(texts::of)
            ending.isVisible = ended != null
            ending.text = ended.orEmpty()
            copy.isVisible = !isUser && message.text.isNotEmpty()
            copy.setOnClickListener { onCopy(message.text) }
        }

        private fun showThoughts(message: Message) {
            val isOpen = message.id in openThoughts
            thoughtsToggle.isVisible = message.thoughts.isNotEmpty()
            thoughtsToggle.setText(if (isOpen) R.string.thoughts_hide else R.string.thoughts_show)
            thoughtsToggle.setOnClickListener {
                if (!openThoughts.remove(message.id)) openThoughts += message.id
                notifyDataSetChanged()
            }
            thoughts.isVisible = isOpen && message.thoughts.isNotEmpty()
            thoughts.text = message.thoughts
        }
    }
}
