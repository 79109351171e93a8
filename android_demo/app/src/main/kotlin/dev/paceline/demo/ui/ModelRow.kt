package dev.paceline.demo.ui

import android.content.Context
import android.text.format.Formatter
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.TextView
import dev.paceline.demo.R

/** One model in the list of models, with what can be done with it. */
class ModelRow(private val context: Context, parent: ViewGroup, private val name: String, onDelete: () -> Unit) {
    private val view = LayoutInflater.from(context).inflate(R.layout.model_row, parent, false)
    private val details = view.findViewById<TextView>(R.id.details)
    private val use = view.findViewById<Button>(R.id.use)

    init {
        view.findViewById<TextView>(R.id.model_name).text = name
        view.findViewById<View>(R.id.delete).apply {
            contentDescription = context.getString(R.string.delete_model, name)
            setOnClickListener { onDelete() }
        }
        parent.addView(view)
    }

    fun stored(bytes: Long, onUse: () -> Unit) = show(size(bytes), R.string.use, R.string.use_model, onUse)

    fun partial(bytes: Long, onResume: () -> Unit) =
        show(context.getString(R.string.model_partial, size(bytes)), R.string.resume, R.string.resume_model, onResume)

    fun tree(onUse: () -> Unit) = show(context.getString(R.string.model_tree), R.string.use, R.string.use_model, onUse)

    fun unreadable() {
        details.setText(R.string.model_unreadable)
        use.isVisible = false
    }

    private fun show(detail: String, action: Int, described: Int, onUse: () -> Unit) {
        details.text = detail
        use.setText(action)
        use.contentDescription = context.getString(described, name)
        use.setOnClickListener { onUse() }
    }

    private fun size(bytes: Long) = Formatter.formatShortFileSize(context, bytes)
}
