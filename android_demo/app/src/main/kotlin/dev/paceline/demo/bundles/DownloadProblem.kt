package dev.paceline.demo.bundles

/** Why a download ended; the user interface has the words for it. */
sealed interface DownloadProblem {
    data class BadAddress(val address: String) : DownloadProblem

    data class BadName(val name: String) : DownloadProblem

    data class Exists(val name: String) : DownloadProblem

    data class NotABundle(val reason: String) : DownloadProblem

    data class TooLarge(val bytes: Long) : DownloadProblem

    data class NoSpace(val needed: Long, val free: Long) : DownloadProblem

    /** An answer that trying again does not change. */
    data class Refused(val file: String, val status: Int) : DownloadProblem

    /** Tried as often as allowed; what came stays, and the next download goes on from there. */
    data class Lost(val file: String, val detail: String) : DownloadProblem

    data class WrongLength(val file: String, val expected: Long, val found: Long) : DownloadProblem

    data class WrongHash(val file: String) : DownloadProblem

    data class Redirect(val address: String) : DownloadProblem

    /** This device cannot write it. */
    data class Storage(val detail: String) : DownloadProblem
}

class DownloadException(val problem: DownloadProblem) : Exception(problem.toString())
