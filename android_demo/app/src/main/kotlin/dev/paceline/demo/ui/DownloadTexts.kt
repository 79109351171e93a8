package dev.paceline.demo.ui

import android.content.Context
import android.text.format.Formatter
import dev.paceline.demo.R
import dev.paceline.demo.bundles.DownloadProblem
import dev.paceline.demo.bundles.DownloadProgress
import dev.paceline.demo.bundles.DownloadState

/** The words for how a download stands. */
class DownloadTexts(private val context: Context) {
    fun of(state: DownloadState): String = when (state) {
        DownloadState.None -> ""
        is DownloadState.Running -> when {
            state.cancelling -> context.getString(R.string.download_cancelling)
            else -> state.progress?.let(::of) ?: context.getString(R.string.download_begins, state.name)
        }
        is DownloadState.Done -> context.getString(R.string.download_done, state.name)
        is DownloadState.Failed -> of(state.problem)
    }

    private fun of(progress: DownloadProgress): String {
        val text = if (progress.checking) R.string.download_checking else R.string.download_running
        return context.getString(text, progress.file, size(progress.done), size(progress.of))
    }

    private fun of(problem: DownloadProblem): String = when (problem) {
        is DownloadProblem.BadAddress -> context.getString(R.string.download_bad_address, problem.address)
        is DownloadProblem.BadName -> context.getString(R.string.download_bad_name, problem.name)
        is DownloadProblem.Exists -> context.getString(R.string.download_exists, problem.name)
        is DownloadProblem.NotABundle -> context.getString(R.string.download_not_a_bundle, problem.reason)
        is DownloadProblem.TooLarge -> context.getString(R.string.download_too_large, size(problem.bytes))
        is DownloadProblem.NoSpace -> context.getString(R.string.download_no_space, size(problem.needed), size(problem.free))
        is DownloadProblem.Refused -> context.getString(R.string.download_refused, problem.file, problem.status)
        is DownloadProblem.Lost -> context.getString(R.string.download_lost, problem.file, problem.detail)
        is DownloadProblem.WrongLength ->
            context.getString(R.string.download_wrong_length, problem.file, problem.found, problem.expected)
        is DownloadProblem.WrongHash -> context.getString(R.string.download_wrong_hash, problem.file)
        is DownloadProblem.Redirect -> context.getString(R.string.download_redirect, problem.address)
        is DownloadProblem.Storage -> context.getString(R.string.download_storage, problem.detail)
    }

    private fun size(bytes: Long) = Formatter.formatShortFileSize(context, bytes)
}
