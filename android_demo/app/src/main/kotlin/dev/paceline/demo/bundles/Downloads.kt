package dev.paceline.demo.bundles

import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

sealed interface DownloadState {
    data object None : DownloadState

    /** @property progress null until the manifest is there. */
    data class Running(val name: String, val progress: DownloadProgress?, val cancelling: Boolean = false) : DownloadState

    data class Done(val name: String) : DownloadState

    data class Failed(val name: String, val problem: DownloadProblem) : DownloadState
}

/** The one download of the process; screens observe [state]. `io` may wait for the network. */
class Downloads(private val download: BundleDownload, io: CoroutineContext) {
    private val scope = CoroutineScope(SupervisorJob() + io)
    private val mutable = MutableStateFlow<DownloadState>(DownloadState.None)
    private var cancellation = Cancellation()

    val state: StateFlow<DownloadState> = mutable.asStateFlow()

    /** False while another one runs. */
    @Synchronized
    fun start(address: String, name: String): Boolean {
        if (state.value is DownloadState.Running) return false
        val cancellation = Cancellation().also { cancellation = it }
        mutable.value = DownloadState.Running(name, null)
        scope.launch { mutable.value = carryOut(address, name, cancellation) }
        return true
    }

    @Synchronized
    fun cancel() {
        val running = state.value as? DownloadState.Running ?: return
        mutable.value = running.copy(cancelling = true)
        cancellation.cancel()
    }

    fun dismiss() {
        if (state.value !is DownloadState.Running) mutable.value = DownloadState.None
    }

    private fun carryOut(address: String, name: String, cancellation: Cancellation): DownloadState =
        try {
            download.run(address, name, cancellation) { progress ->
                mutable.update { if (it is DownloadState.Running) it.copy(progress = progress) else it }
            }
            DownloadState.Done(name)
        } catch (error: DownloadException) {
            DownloadState.Failed(name, error.problem)
        } catch (_: CancelledException) {
            DownloadState.None
        }
}
