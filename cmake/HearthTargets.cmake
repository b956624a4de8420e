# Flags for all of hearth, and the two kinds of target: rooms and tests.
# Asserts stay on in every build: they guard against wrong numbers, not only against crashes.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
add_library(hearth_flags INTERFACE)
target_include_directories(hearth_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(hearth_flags INTERFACE _GNU_SOURCE=1 HEARTH_VERSION="${PROJECT_VERSION}")
target_link_libraries(hearth_flags INTERFACE Threads::Threads m)
target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wvla -Wmissing-prototypes
                                              -Wno-missing-field-initializers>)
# -fno-math-errno and friends let loops vectorise; results stay IEEE: no -ffast-math, so that NaN guards work and
# sums keep their order.
target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fno-math-errno -fno-trapping-math>)
# The shapes of every op's call are checked in debug and sanitized builds (ops/check.c).
if(CMAKE_BUILD_TYPE STREQUAL "Debug" OR HEARTH_SANITIZE)
    target_compile_definitions(hearth_flags INTERFACE HEARTH_CHECK_OPS=1)
endif()
if(HEARTH_NATIVE)
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-march=native>)
endif()
# Against what a bug that is still there could be used for: calls with checked sizes, guarded stacks, indirect jumps to
# marked places only, addresses that change from start to start, tables of the linker that nothing can write. No step
# became slower by it (docs/performance-log.md). Sanitizers have their own; without optimisation sizes are not known.
if(HEARTH_HARDEN AND NOT HEARTH_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    include(CheckCCompilerFlag)
    include(CheckPIESupported)
    check_pie_supported(LANGUAGES C)
    set(CMAKE_POSITION_INDEPENDENT_CODE ${CMAKE_C_LINK_PIE_SUPPORTED})
    foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
        string(MAKE_C_IDENTIFIER "HEARTH_HAS${flag}" has)
        check_c_compiler_flag(${flag} ${has})
        if(${has})
            target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:${flag}>)
        endif()
    endforeach()
    # Level 3 falls back to what the compiler and libc know.
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>)
    target_link_options(hearth_flags INTERFACE -Wl,-z,relro,-z,now)
endif()
if(HEARTH_WERROR)
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(HEARTH_SANITIZE)
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fsanitize=${HEARTH_SANITIZE}
                                                  -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    target_link_options(hearth_flags INTERFACE -fsanitize=${HEARTH_SANITIZE})
    # gcc's checks for uninitialised variables cry wolf on instrumented code; the plain builds keep them.
    target_compile_options(hearth_flags INTERFACE $<$<C_COMPILER_ID:GNU>:$<$<COMPILE_LANGUAGE:C>:-Wno-maybe-uninitialized>>)
endif()

# hearth_room(NAME USES other rooms and libraries): src/NAME/*.c (not main.c) as the static library hearth_NAME.
function(hearth_room name)
    cmake_parse_arguments(room "" "" "USES" ${ARGN})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.c)
    list(FILTER sources EXCLUDE REGEX "/main\\.c$")
    if(HEARTH_HAVE_CUDA)
        file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cu)
        list(APPEND sources ${kernels})
    else()
        list(FILTER sources EXCLUDE REGEX "/cuda/")
    endif()
    if(sources)
        add_library(hearth_${name} STATIC ${sources})
        set(scope PUBLIC)
    else()
        add_library(hearth_${name} INTERFACE)
        set(scope INTERFACE)
    endif()
    target_link_libraries(hearth_${name} ${scope} hearth_flags)
    foreach(used ${room_USES})
        if(TARGET hearth_lib_${used})
            target_link_libraries(hearth_${name} ${scope} hearth_lib_${used})
        else()
            target_link_libraries(hearth_${name} ${scope} hearth_${used})
        endif()
    endforeach()
endfunction()

# hearth_pages(ROOM): src/ROOM/pages/* as C arrays in the room's library.
function(hearth_pages room)
    set(folder ${CMAKE_SOURCE_DIR}/src/${room}/pages)
    set(output ${CMAKE_BINARY_DIR}/generated/${room}_pages.c)
    file(GLOB pages CONFIGURE_DEPENDS ${folder}/*.html ${folder}/*.css ${folder}/*.js ${folder}/*.svg)
    add_custom_command(OUTPUT ${output} DEPENDS ${pages} ${CMAKE_SOURCE_DIR}/cmake/HearthPages.cmake
                       COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder} -DOUTPUT=${output}
                               -P ${CMAKE_SOURCE_DIR}/cmake/HearthPages.cmake)
    target_sources(hearth_${room} PRIVATE ${output})
endfunction()

# For every test, those that other CMakeLists.txt add by hand included. MPI and the CUDA driver keep memory to the end of
# the process; the list names only such libraries.
set(HEARTH_TEST_ENVIRONMENT "HEARTH_BUILD=${CMAKE_BINARY_DIR}" "HEARTH_HISTORY=" # no test adds to the user's history
                            "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/lsan.supp:print_suppressions=0")

# hearth_test(NAME source ROOMS rooms [ARGS arguments]): a cmocka program build/tests/NAME run by CTest in the root of the
# project, from where it finds the test data.
function(hearth_test name source)
    cmake_parse_arguments(test "MANUAL" "" "ROOMS;ARGS" ${ARGN})
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE hearth_flags hearth_lib_cmocka)
    foreach(room ${test_ROOMS})
        target_link_libraries(${name} PRIVATE hearth_${room})
    endforeach()
    if(NOT test_MANUAL)
        add_test(NAME ${name} COMMAND ${name} ${test_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
        set_tests_properties(${name} PROPERTIES ENVIRONMENT "${HEARTH_TEST_ENVIRONMENT}" TIMEOUT 600)
    endif()
endfunction()

# For tests under mpirun, beside HEARTH_TEST_ENVIRONMENT. Ranks of a test share few cores: they yield while they wait, are
# not bound to cores, and have one thread each.
set(HEARTH_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
                           OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none HEARTH_THREADS=1)

# hearth_test_ranks(NAME ranks...): the program of hearth_test(NAME) under mpirun too, as NAME_<n>_ranks.
function(hearth_test_ranks name)
    foreach(ranks ${ARGN})
        set(test ${name}_${ranks}_ranks)
        if(HEARTH_HAVE_MPI)
            add_test(NAME ${test} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:${name}>
                     WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
            set_tests_properties(${test} PROPERTIES TIMEOUT 120 PROCESSORS 2 LABELS ranks
                                 ENVIRONMENT "${HEARTH_TEST_ENVIRONMENT};${HEARTH_MPI_ENVIRONMENT}")
        else()
            add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED ${test}: this build has no MPI")
            set_tests_properties(${test} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
        endif()
    endforeach()
    if(HEARTH_HAVE_MPI)
        hearth_keep_libraries(${name})
    endif()
endfunction()

# For programs that run under MPI: a leak checker knows what a plug-in has kept only while the plug-in is loaded.
function(hearth_keep_libraries program)
    if(HEARTH_SANITIZE)
        target_sources(${program} PRIVATE ${CMAKE_SOURCE_DIR}/tests/keep_libraries.c)
        set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON)
    endif()
endfunction()
