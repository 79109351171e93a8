package dev.paceline.demo.bundles

import java.net.URI

/** Names and addresses that come from outside, and what is taken of them. */

/** What a bundle is called until all of it is there. */
const val PARTIAL = ".partial"

const val MANIFEST = "manifest.json"

/** A name without a directory in it, and not a hidden one: those are the app's own notes. */
fun isPlainName(name: String) = PLAIN.matches(name)

fun isBundleName(name: String) = isPlainName(name) && name.length <= 64 && !name.endsWith(PARTIAL)

/**
 * A bundle's address, without a slash at its end; null where it is none that may be read from. Only this machine and the
 * emulator's host, which no network lies between, may go without TLS.
 */
fun bundleAddress(text: String): URI? {
    val address = runCatching { URI(text.trim().trimEnd('/')) }.getOrNull() ?: return null
    return address.takeIf { mayRead(it) && it.rawQuery == null && it.rawFragment == null }
}

fun mayRead(address: URI): Boolean = when (address.scheme?.lowercase()) {
    "https" -> !address.host.isNullOrEmpty()
    "http" -> address.host in LOCAL
    else -> false
}

private val PLAIN = Regex("[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
private val LOCAL = setOf("localhost", "127.0.0.1", "10.0.2.2")
