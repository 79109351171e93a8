package dev.paceline.demo.bundles

import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit

class CancelledException : Exception()

/**
 * Ends a download from another thread: at its next bytes, or where none come at the read timeout. A connection is not closed from
 * outside, because HttpURLConnection belongs to one thread.
 */
class Cancellation {
    private val cancelled = CountDownLatch(1)

    fun cancel() = cancelled.countDown()

    fun check() {
        if (cancelled.count == 0L) throw CancelledException()
    }

    fun pause(ms: Long) {
        cancelled.await(ms, TimeUnit.MILLISECONDS)
        check()
    }
}
