package dev.paceline.demo.bundles

import java.io.IOException
import java.net.HttpURLConnection
import java.net.URI

data class TransferLimits(
    val connectTimeoutMs: Int = 15_000,
    val readTimeoutMs: Int = 10_000,
    val attempts: Int = 8,
    val firstPauseMs: Long = 1_000,
    val longestPauseMs: Long = 30_000,
    val redirects: Int = 5,
)

/** HTTP GET, with redirects that stay as safe as the address was. */
internal class Http(private val limits: TransferLimits) {
    fun <T> get(address: URI, headers: Map<String, String>, use: (HttpURLConnection) -> T): T {
        var at = address
        repeat(limits.redirects + 1) {
            val connection = connect(at, headers)
            try {
                if (connection.responseCode !in REDIRECTS) return use(connection)
                at = redirected(at, connection.getHeaderField("Location"))
            } finally {
                connection.disconnect()
            }
        }
        throw DownloadException(DownloadProblem.Redirect(at.toString()))
    }

    /** Throws: to try again where that may help, or for good. */
    fun refuse(file: String, answer: HttpURLConnection): Nothing {
        val status = answer.responseCode
        if (status in PASSING || status >= 500) throw IOException("HTTP $status")
        throw DownloadException(DownloadProblem.Refused(file, status))
    }

    private fun connect(address: URI, headers: Map<String, String>): HttpURLConnection {
        val connection = address.toURL().openConnection() as HttpURLConnection
        connection.connectTimeout = limits.connectTimeoutMs
        connection.readTimeout = limits.readTimeoutMs
        connection.instanceFollowRedirects = false
        connection.setRequestProperty("Accept-Encoding", "identity") // lengths and ranges are of the file itself
        headers.forEach(connection::setRequestProperty)
        return connection
    }

    private fun redirected(from: URI, location: String?): URI {
        val to = runCatching { from.resolve(location.orEmpty()) }.getOrNull()
        if (to == null || !mayRead(to) || (from.isSafe && !to.isSafe)) {
            throw DownloadException(DownloadProblem.Redirect(location.orEmpty()))
        }
        return to
    }

    private companion object {
        val REDIRECTS = setOf(301, 302, 303, 307, 308)
        val PASSING = setOf(408, 425, 429)
    }
}

private val URI.isSafe get() = scheme.equals("https", ignoreCase = true)
