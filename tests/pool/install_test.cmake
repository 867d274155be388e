# Installs the pool alone into an empty folder, moves it, and builds both examples there twice: with
# CMake through find_package, and with bare compilers through pkg-config. Runs all four.
# usage: cmake -D BUILD=<build> -D WORK=<folder of its own> -D CC=… -D CXX=… -D PKG_CONFIG=…
#   [-D SANITIZE=ON] -P install_test.cmake

if(SANITIZE)
  message("pool-install: skipped, a sanitized library links only into sanitized programs")
  return()
endif()
foreach(tool CC CXX PKG_CONFIG)
  if(NOT EXISTS "${${tool}}")
    message(FATAL_ERROR "pool-install: expected a program for ${tool}, got `${${tool}}`; ci/setup installs it")
  endif()
endforeach()

function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}\nended with ${status}:\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
must(${CMAKE_COMMAND} --install ${BUILD} --component kern-pool --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/installed)  # a package that kept its first place is found out
file(GLOB_RECURSE files RELATIVE ${WORK}/installed ${WORK}/installed/*)
foreach(file ${files})
  if(NOT file MATCHES "^(include/kern/pool/[a-z_]+[.]h|lib[^/]*/.*kern-pool.*|share/kern-pool/examples/.*)$")
    message(FATAL_ERROR "the pool's package installs ${file}, which is not the pool's")
  endif()
endforeach()

set(examples ${WORK}/installed/share/kern-pool/examples)
must(${CMAKE_COMMAND} -G Ninja -S ${examples} -B ${WORK}/cmake -D CMAKE_PREFIX_PATH=${WORK}/installed
  -D CMAKE_C_COMPILER=${CC} -D CMAKE_CXX_COMPILER=${CXX}
  "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror" "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
must(${CMAKE_COMMAND} --build ${WORK}/cmake)
foreach(example batching conversation)
  must(${WORK}/cmake/${example})
  message(STATUS "${example}: ${out}")
endforeach()

file(GLOB_RECURSE pc ${WORK}/installed/kern-pool.pc)
get_filename_component(folder "${pc}" DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${folder})
must(${PKG_CONFIG} --cflags --libs kern-pool)
separate_arguments(flags UNIX_COMMAND "${out}")
must(${CC} -std=c99 -pedantic -Wall -Wextra -Werror ${examples}/conversation.c -o ${WORK}/conversation
  ${flags})
must(${CXX} -std=c++20 -Wall -Wextra -Werror ${examples}/batching.cc -o ${WORK}/batching ${flags})
foreach(example batching conversation)
  must(${WORK}/${example})
endforeach()
