package dev.paceline.demo.ui

import android.view.View
import android.view.WindowInsets

/** Keeps a screen's content clear of bars, cutouts and the keyboard; from target 36 on apps are drawn behind them. */
fun View.padForSystemBars() = setOnApplyWindowInsetsListener { view, insets ->
    val kinds = WindowInsets.Type.systemBars() or WindowInsets.Type.displayCutout() or WindowInsets.Type.ime()
    val edges = insets.getInsets(kinds)
    view.setPadding(edges.left, edges.top, edges.right, edges.bottom)
    WindowInsets.CONSUMED
}
