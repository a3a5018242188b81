// Empty on purpose: what counts is the name and the dependency of the library, both set in CMakeLists.txt.
