package dev.paceline.demo.engine

/** Ends one answer or comparison from any thread, also before its text has begun. */
class StopSignal {
    private var stream: TextStream? = null

    @get:Synchronized
    var isStopped = false
        private set

    @Synchronized
    fun stop() {
        isStopped = true
        stream?.cancel()
    }

    /** Reads a text as long as `each` says that it goes on, and closes it; `stop` reaches it meanwhile. */
    fun read(text: TextStream, each: (TextStream) -> Boolean) = text.use {
        attach(it)
        try {
            do {
                val goesOn = each(it)
            } while (goesOn)
        } finally {
            attach(null)
        }
    }

    @Synchronized
    private fun attach(text: TextStream?) {
        stream = text
        if (isStopped) text?.cancel()
    }
}
