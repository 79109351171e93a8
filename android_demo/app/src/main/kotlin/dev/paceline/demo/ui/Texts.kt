package dev.paceline.demo.ui

import android.content.Context
import android.os.PowerManager
import android.text.format.Formatter
import dev.paceline.core.ModelInfo
import dev.paceline.core.Stats
import dev.paceline.demo.R
import dev.paceline.demo.StartNotice
import dev.paceline.demo.device.ExitCause
import dev.paceline.demo.device.LastExit
import dev.paceline.demo.device.Readings
import dev.paceline.demo.engine.Comparison
import dev.paceline.demo.engine.Ending
import dev.paceline.demo.engine.ModelState
import dev.paceline.demo.engine.Problem
import dev.paceline.demo.engine.Verdict
import dev.paceline.demo.settings.Field
import kotlin.math.roundToInt

/** The words for what the engine and the device say. */
class Texts(private val context: Context) {
    fun of(problem: Problem): String = when (problem) {
        is Problem.Core -> problem.sentence
        Problem.NoModel -> context.getString(R.string.problem_no_model)
        is Problem.TreeGone -> context.getString(R.string.problem_tree_gone, problem.name)
        is Problem.NoLibrary -> context.getString(R.string.problem_no_library, problem.detail)
    }

    fun of(notice: StartNotice): String {
        val refused = notice.refused.map { context.getString(R.string.notice_refused, nameOf(it.field), it.text) }
        return (listOfNotNull(notice.exit?.let(::of)) + refused).joinToString("\n")
    }

    fun of(model: ModelState): String = when (model) {
        ModelState.None -> context.getString(R.string.model_none)
        is ModelState.Loading -> loading(model)
        is ModelState.Ready -> ready(model.info)
        is ModelState.Absent -> context.getString(if (model.freed) R.string.model_freed else R.string.model_absent)
    }

    /** With the reason of a fallback, which is never silent. */
    private fun ready(info: ModelInfo): String =
        listOf(context.getString(R.string.model_ready, info.recipe, info.ranOn, threads(info.threads)), info.fallback)
            .filter { it.isNotEmpty() }.joinToString("\n")

    fun of(ending: Ending): String? = when (ending) {
        Ending.COMPLETE -> null
        Ending.CONTEXT_FULL -> context.getString(R.string.ending_context_full)
        Ending.STOPPED -> context.getString(R.string.ending_stopped)
        Ending.FAILED -> context.getString(R.string.ending_failed)
    }

    fun of(comparison: Comparison): String {
        val verdict = when (comparison.verdict) {
            Verdict.PLAIN -> R.string.verdict_plain
            Verdict.DRAFTED -> R.string.verdict_drafted
            Verdict.NO_DIFFERENCE -> R.string.verdict_no_difference
            Verdict.OTHER_TOKENS -> R.string.verdict_other_tokens
            Verdict.TOO_SHORT -> R.string.verdict_too_short
        }
        val tokens = if (comparison.sameTokens) R.string.tokens_same else R.string.tokens_differ
        val speeds = context.getString(
            R.string.compared, comparison.plain, comparison.drafted, comparison.acceptedPerRound, comparison.ratio, comparison.noise,
        )
        return listOf(speeds, context.getString(tokens), context.getString(verdict)).joinToString("\n")
    }

    fun live(stats: Stats?, readings: Readings?): String =
        listOfNotNull(stats?.let(::speed), stats?.let(::drafts), readings?.rssAnonBytes?.let(::memory), readings?.let(::thermal))
            .joinToString(context.getString(R.string.live_separator))

    private fun speed(stats: Stats) = context.getString(R.string.live_speed, stats.tokensPerSecond)

    private fun drafts(stats: Stats): String? {
        if (stats.rounds == 0) return null
        if (stats.drafted == 0) return context.getString(R.string.live_plain, stats.verifyMs / stats.rounds)
        return context.getString(
            R.string.live_drafts,
            stats.acceptedPerRound,
            (100 * stats.acceptance).roundToInt(),
            stats.draftMs / stats.rounds,
            stats.verifyMs / stats.rounds,
        )
    }

    private fun memory(bytes: Long) = context.getString(R.string.live_memory, Formatter.formatShortFileSize(context, bytes))

    private fun thermal(readings: Readings): String {
        val names = context.resources.getStringArray(R.array.thermal)
        val status = names[readings.thermalStatus.coerceIn(names.indices)]
        val text = readings.headroom?.let { context.getString(R.string.live_thermal_headroom, status, it) }
            ?: context.getString(R.string.live_thermal, status)
        val isHot = readings.thermalStatus >= PowerManager.THERMAL_STATUS_SEVERE
        return if (isHot) context.getString(R.string.live_hot, text) else text
    }

    private fun loading(model: ModelState.Loading): String {
        val stage = context.getString(if (model.stage == "checking") R.string.stage_checking else R.string.stage_loading, model.source.name)
        return if (model.again) context.getString(R.string.model_again, stage) else stage
    }

    private fun of(exit: LastExit): String {
        val cause = when (exit.cause) {
            ExitCause.LOW_MEMORY -> R.string.exit_low_memory
            ExitCause.MEMORY_LIMIT -> R.string.exit_memory_limit
            ExitCause.NATIVE_CRASH -> R.string.exit_native_crash
            ExitCause.CRASH -> R.string.exit_crash
            ExitCause.ANR -> R.string.exit_anr
            ExitCause.EXCESSIVE_USE -> R.string.exit_excessive_use
            ExitCause.KILLED -> R.string.exit_killed
        }
        val text = context.getString(cause)
        val memory = exit.rssBytes.takeIf { it > 0 }
            ?.let { context.getString(R.string.exit_memory, Formatter.formatShortFileSize(context, it)) }
        val detail = exit.description.ifEmpty { null }?.let { context.getString(R.string.exit_detail, it) }
        return listOfNotNull(text, memory, detail).joinToString(" ")
    }

    fun nameOf(field: Field): String = context.getString(
        when (field) {
            Field.THREADS -> R.string.setting_threads
            Field.CONTEXT -> R.string.setting_context
            Field.BACKEND -> R.string.setting_backend
            Field.DRAFT -> R.string.setting_draft
            Field.TEMPERATURE -> R.string.setting_temperature
            Field.TOP_K -> R.string.setting_top_k
            Field.TOP_P -> R.string.setting_top_p
        },
    )

    private fun threads(count: Int) = context.resources.getQuantityString(R.plurals.threads, count, count)
}
