plugins {
    alias(libs.plugins.android.application)
}

android {
    namespace = "dev.paceline.demo"
    compileSdk = 36

    defaultConfig {
        applicationId = "dev.paceline.demo"
        minSdk = 31
        targetSdk = 36
        versionCode = 1
        versionName = "0.1"
        ndk { abiFilters += "arm64-v8a" } // 32-bit processes cannot map a target of this size
        externalNativeBuild { cmake { targets += "paceline" } }
    }

    buildTypes {
        debug {
            ndk { abiFilters += "x86_64" } // emulators
        }
        release {
            // No shrinking: the app is small, and JNI finds PacelineException and LoadProgress by name.
            isMinifyEnabled = false
        }
    }

    externalNativeBuild {
        cmake {
            path = file("src/main/cpp/CMakeLists.txt")
            version = "3.22.1"
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

tasks.withType<Test>().configureEach {
    // ModelTest runs the core where -Ppaceline.bundle=…, -Ppaceline.jni=… and -Ppaceline.litert=… say where things are.
    for (name in listOf("paceline.bundle", "paceline.jni", "paceline.litert")) {
        providers.gradleProperty(name).orNull?.let { systemProperty(name, it) }
    }
}

dependencies {
    implementation(libs.coroutines.android)
    runtimeOnly(libs.litert) // for its libLiteRt.so, which the core opens
    testImplementation(libs.junit)
    testImplementation(libs.kotlin.test)
}
