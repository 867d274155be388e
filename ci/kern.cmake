# How every library, program and test of this tree is declared.
# kern_library(NAME SOURCES … PUBLIC … PRIVATE …): libs/NAME as libkern-NAME.a, alias kern::NAME.
# kern_program(NAME SOURCES … LINK …): build/bin/NAME.
# kern_test(NAME SOURCES … LINK … [LABELS …]): one Catch2 binary, its cases registered with CTest.

add_library(kern-flags INTERFACE)
target_compile_options(kern-flags INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers
  # g++ 12 reports overflows in code it inlined wrongly (GCC bugs 105329, 105651) and variants as
  # uninitialized where they move (GCC bug 105562)
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-stringop-overflow;-Wno-restrict;-Wno-array-bounds>"
  -fno-strict-aliasing -ffp-contract=off -msse4.2)
if(KERN_SANITIZE)
  target_compile_options(kern-flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(kern-flags INTERFACE -fsanitize=address,undefined)
endif()
if(KERN_FUZZ)
  target_compile_options(kern-flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
find_program(MOLD mold)
if(MOLD AND NOT KERN_FUZZ)  # clang 14 and mold do not agree on how the sanitizers are linked
  target_link_options(kern-flags INTERFACE -fuse-ld=mold)
endif()

function(kern_library name)
  cmake_parse_arguments(A "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(kern-${name} STATIC ${A_SOURCES})
  add_library(kern::${name} ALIAS kern-${name})
  target_include_directories(kern-${name}
    PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(kern-${name} PUBLIC ${A_PUBLIC} PRIVATE kern-flags ${A_PRIVATE})
endfunction()

function(kern_program name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE kern-flags ${A_LINK})
endfunction()

function(kern_test name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name}-test ${A_SOURCES})
  target_link_libraries(${name}-test PRIVATE kern-flags kern-test-support ${A_LINK})
  # Catch's macros cost twice the compile time at -O2, and a test's own speed does not matter.
  target_compile_options(${name}-test PRIVATE -O0)
  target_compile_definitions(${name}-test PRIVATE
    KERN_TEST_DIR="${CMAKE_CURRENT_SOURCE_DIR}" KERN_SOURCE_DIR="${CMAKE_SOURCE_DIR}" KERN_BUILD_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name}-test --durations no)
  set_tests_properties(${name} PROPERTIES LABELS "host;${A_LABELS}" TIMEOUT 600)
endfunction()
